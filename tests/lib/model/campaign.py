"""How long a state machine runs. In the default check the examples are always the same; a long run
takes new ones until its time is over, and prints the seed of each round."""

import os
import random
import time

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from .pairs import Pairs

STEPS = 40
ENOUGH = 300  # examples, in which every call succeeds sometime


def _settings(**keywords):
    return settings(stateful_step_count=STEPS, deadline=None, database=None, print_blob=True,
                    suppress_health_check=list(HealthCheck), **keywords)


def run(make, examples):
    """The same examples each time, as long as machine and version of Hypothesis are the same."""
    run_state_machine_as_test(make, settings=_settings(derandomize=True, max_examples=examples))


def campaign(name, make, seconds):
    """BERTH_MODEL_SECONDS instead, and BERTH_MODEL_SEED for the first round's seed."""
    seconds = float(os.environ.get("BERTH_MODEL_SECONDS", seconds))
    seed = int(os.environ.get("BERTH_MODEL_SEED", random.SystemRandom().randrange(1 << 32)))
    end, examples = time.monotonic() + seconds, 0
    Pairs.outcomes.clear()

    def counted():
        nonlocal examples
        examples += 1
        return make()

    while time.monotonic() < end:
        counted._hypothesis_internal_use_seed = seed
        print(f"{name}: BERTH_MODEL_SEED={seed}", flush=True)
        run_state_machine_as_test(counted, settings=_settings(
            max_examples=50, phases=[Phase.generate, Phase.shrink]))
        seed += 1
    print(f"{name}: {examples} examples, {Pairs.outcomes.total()} calls; succeeded and failed:")
    names = sorted({call for call, _ in Pairs.outcomes})
    print(", ".join(f"{call} {Pairs.outcomes[call, True]}+{Pairs.outcomes[call, False]}" for call in names))
    idle = [call for call in names if not Pairs.outcomes[call, True]]
    assert not idle or examples < ENOUGH, f"never succeeded: {idle}"
