"""Everything about mounts that keep what they know, with a service that has only inotify."""

import pytest

from integration.test_coherence import *  # noqa: F401, F403
from integration.test_coherence_races import *  # noqa: F401, F403
from integration.test_read_your_exec import *  # noqa: F401, F403
from integration.test_tree import *  # noqa: F401, F403
from integration.test_writers import *  # noqa: F401, F403

pytestmark = pytest.mark.long


@pytest.fixture
def service(start_service):
    return start_service(args=["--watch", "inotify"])
