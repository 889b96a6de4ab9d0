"""Everything about mounts that keep what they know, with a service that has only inotify."""

import pytest

from integration.test_coherence import *  # noqa: F401, F403
from integration.test_coherence_races import *  # noqa: F401, F403
from integration.test_read_your_exec import *  # noqa: F401, F403
from integration.test_tree import *  # noqa: F401, F403
from integration.test_writers import *  # noqa: F401, F403

# What these count is promised with fanotify: here a few of many files are asked for once more.
del test_a_walk_of_many_directories_brings_many_at_a_time  # noqa: F821
del test_git_status_of_a_cold_repository  # noqa: F821

pytestmark = pytest.mark.long


@pytest.fixture
def service(start_service):
    return start_service(args=["--watch", "inotify"])
