"""Random calls, compared with a local directory (lib/model). The number of examples keeps the default
check short; the long tests run for minutes, BERTH_MODEL_SECONDS says for how many seconds."""

import pytest

from lib.model import campaign, machines

LONG = 240
# A failure is made small before it is shown.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_any_calls(local, mounted):
    campaign.run(lambda: machines.Tree(local, mounted), 20)


def test_the_expectations_of_one_file_hold_on_a_local_directory(local):
    campaign.run(lambda: machines.File(local, local), 12)


def test_one_file(mounted, workspace):
    campaign.run(lambda: machines.File(mounted, workspace), 12)


def test_two_mounts_and_an_agent(local, mounted, mounted_too, workspace, settle):
    campaign.run(lambda: machines.Together(local, mounted, mounted_too, workspace, settle), 10)


@pytest.mark.long
@pytest.mark.timeout(LONG * 20)
def test_any_calls_for_long(local, mounted):
    campaign.campaign("any calls", lambda: machines.Tree(local, mounted), LONG)


@pytest.mark.long
@pytest.mark.timeout(LONG * 20)
def test_one_file_for_long(mounted, workspace):
    campaign.campaign("one file", lambda: machines.File(mounted, workspace), LONG)


@pytest.mark.long
@pytest.mark.timeout(LONG * 20)
def test_two_mounts_and_an_agent_for_long(local, mounted, mounted_too, workspace, settle):
    campaign.campaign("two mounts", lambda: machines.Together(local, mounted, mounted_too, workspace, settle), LONG)
