"""Two mirrored devices against one. Logical devices must exist before TensorFlow starts: a process of its own."""

import contextlib
import json
from collections.abc import Callable

import numpy as np
import pytest

from accumtrain.optim.config import OPTIMIZERS, KerasOptimConfig
from tests.keras.programs import mirrored, run_python

KERAS = ["Nadam", "ScheduleFreeAdamW"]  # beside the example of the row
CASES = [*OPTIMIZERS.names, *KERAS]


@pytest.fixture(scope="module")
def differences() -> dict[str, dict[str, float]]:
    return json.loads(run_python(__file__).splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_replicas_stay_equal_to_one_device(differences, case):
    assert differences[case] == {"weights": 0.0, "state": 0.0, "moved": 1.0}


def main() -> None:
    import tensorflow as tf

    from accumtrain.optim.config import OptimConfig
    from accumtrain.train.build import build_optimizer
    from tests.contract.examples import example_of

    strategy = mirrored()
    configs: dict[str, OptimConfig] = {name: example_of("optim", name) for name in OPTIMIZERS.names}
    configs |= {name: KerasOptimConfig(lr=0.01, weight_decay=0.1, name=name) for name in KERAS}

    rng = np.random.default_rng(0)
    shapes = [(), (5,), (4, 6), (3, 3, 2, 5)]
    start = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    gradients = [[rng.normal(size=shape).astype(np.float32) for shape in shapes] for _ in range(4)]

    def trained(config: OptimConfig, scope: contextlib.AbstractContextManager, run: Callable) -> tuple[list, list]:
        with scope:
            variables = [tf.Variable(value, aggregation=tf.VariableAggregation.NONE) for value in start]
            optimizer = build_optimizer(config)
            optimizer.build(variables, [len(shape) >= 2 for shape in shapes])

        @tf.function(autograph=False)
        def update(go: tf.Tensor, step: tf.Tensor, *gradients: tf.Tensor) -> tf.Tensor:
            def replica() -> tf.Tensor:
                def commit() -> tf.Tensor:
                    optimizer.apply(gradients, optimizer.learning_rate(step), step)
                    return step + 1

                return tf.cond(go, commit, lambda: step)

            return run(replica)

        for step, values in enumerate(gradients):
            for go in (True, False):
                update(tf.constant(go), tf.constant(step, tf.int64), *[tf.constant(value) for value in values])
        return variables, optimizer.state

    def distance(plain: list, mirrored: list) -> float:
        pairs = [(one, two) for one, both in zip(plain, mirrored, strict=True) for two in both.values]
        return max((float(np.abs(one.numpy() - two.numpy()).max()) for one, two in pairs), default=0.0)

    differences = {}
    for name, config in configs.items():
        weights, state = trained(config, contextlib.nullcontext(), lambda replica: replica())
        mirrored_weights, mirrored_state = trained(config, strategy.scope(), strategy.run)
        differences[name] = {
            "weights": distance(weights, mirrored_weights),
            "state": distance(state, mirrored_state),
            "moved": float(all((now.numpy() != was).any() for now, was in zip(weights, start, strict=True))),
        }
    print(json.dumps(differences))


if __name__ == "__main__":
    main()
