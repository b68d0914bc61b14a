"""The checks of job=verify that find each planted fault, by parts of their names. Others may fail as well."""

SUM = " micro-batches against the mean of each alone"
WHOLE = " micro-batches against one batch"
DIFFERENCES = "gradient against differences of the loss, in float64"
STORE, RECOMPUTE, REVERSE = (
    f" that differ from plain back-propagation, memory={policy}" for policy in ("store", "recompute", "reverse")
)
KERAS_STORE, KERAS_RECOMPUTE = (
    f"gradient against plain back-propagation, memory={policy}" for policy in ("store", "recompute")
)
RECONSTRUCTION = "largest reconstruction error of a stream"
LARGEST = "largest stream, of 22 bits behind the point"
ALONG = " along that in float64, worst variable"
STATISTICS = "moving statistics in float32 against those in float64"
EVALUATION = "evaluation by the statistics of a batch against its training pass, in float64"
LOSS = "loss against an independent formula, in float64"
NORM = "norm of the gradient against float64"
COMMIT = "weights after the commit against an independent formula"
OPTIMIZER = " updates of the optimizer against an independent formula"
RATE = " updates against its definition, of the rate without schedule"
IMPORTED_STATES, IMPORTED_LOGITS = (
    f"{values} against those of the files, in float64" for values in ("hidden states", "logits")
)
AVERAGE = "moving average of the weights against its definition, of its change"

GRADIENT = {SUM, DIFFERENCES, STORE, RECOMPUTE}  # of every pass
REVERSIBLE = GRADIENT | {REVERSE}
VALUE = {LOSS, DIFFERENCES}
MOVING = {"moving means against float64, worst channel", "moving variances against float64, worst channel"}
UPDATE = {COMMIT, OPTIMIZER}

# by the name of the fault
FOUND_BY = {
    "1x1 kernel gradient x 1.1": {DIFFERENCES},
    "kernel gradient x 1.001": GRADIENT,
    "kernel gradient negated": REVERSIBLE,
    "input gradient of a convolution x 1.01": GRADIENT,
    "input gradient of a convolution transposed": REVERSIBLE,
    "gamma's gradient doubled": GRADIENT,
    "beta's gradient missing": REVERSIBLE,
    "gamma's and beta's gradients swapped": GRADIENT,
    "input gradient of batch norm x 1.3": GRADIENT,
    "batch norm: a hundredth without its gradient": {DIFFERENCES},
    "input gradient in parts x 1.01": {DIFFERENCES},
    "gamma's gradient in parts x 1.1": {DIFFERENCES},
    "group norm's replay x 1.01": REVERSIBLE,
    "a residual function's gradients dropped": GRADIENT,
    "a projection's input gradient dropped": REVERSIBLE,
    "a shortcut stops half of the gradient": {DIFFERENCES},
    "the second stem's gradients dropped": REVERSIBLE,
    "a stem's pass differs from its replay": REVERSIBLE,
    "a bias's gradient stopped": {DIFFERENCES},
    "gradient of the loss doubled": GRADIENT,
    "a unit's two streams swapped in reverse": {SUM, DIFFERENCES, REVERSE},
    "F's gradient left out in reverse": {SUM, DIFFERENCES, RECOMPUTE, REVERSE},
    "subtraction off by the last bit of a stream": {REVERSE, RECONSTRUCTION, ALONG},
    "values rounded, not cut off, in the reversal": {REVERSE, RECONSTRUCTION, ALONG},
    "streams read times 1.001 in pullbacks": REVERSIBLE,
    "a sum of streams, not in place, loses 8 bits": {SUM, RECOMPUTE, REVERSE, RECONSTRUCTION, ALONG, STATISTICS},
    "streams of 6 bits more than their range has": {LARGEST},
    "the factor of a stream left out of its statistics": {SUM, STATISTICS, STORE, RECOMPUTE, REVERSE},
    "a replay draws other numbers": {SUM, DIFFERENCES, RECOMPUTE, REVERSE},
    "stochastic depth's gradient without its factor": GRADIENT,
    "a replay's gradients twice": REVERSIBLE,
    "a replay's gradients twice, of a Keras model": {SUM, DIFFERENCES, KERAS_STORE, KERAS_RECOMPUTE},
    "attention: the scores' gradient without its mean": {DIFFERENCES},
    "attention: input gradient x 1.01": {DIFFERENCES},
    "attention: a replay attends otherwise": {SUM, DIFFERENCES, RECOMPUTE, REVERSE},
    "layer norm: input gradient x 1.01": {DIFFERENCES},
    "layer norm: gamma's and beta's gradients swapped": {DIFFERENCES},
    "a linear layer's bias without a gradient": {DIFFERENCES},
    "GELU's slope without the density": {DIFFERENCES},
    "a replay forgets the mask": {SUM, DIFFERENCES, RECOMPUTE, REVERSE},
    "padding has a part in attention's gradient": {DIFFERENCES},
    "a published model sees padding": {IMPORTED_STATES, IMPORTED_LOGITS},
    "a token sees the next one": {IMPORTED_STATES, IMPORTED_LOGITS},
    "documents of a packed row see each other": {IMPORTED_STATES, IMPORTED_LOGITS},
    "places of a packed row run on from document to document": {IMPORTED_STATES, IMPORTED_LOGITS},
    "labels + 1": VALUE,
    "label smoothing twice as strong": VALUE,
    "class weights ignored": VALUE,
    "loss x 1.001": VALUE,
    "loss of the mixed label left out": VALUE,
    "examples + 1e-3": {SUM},
    "examples twice": {SUM},
    "buffers keep the last micro-batch": {SUM, WHOLE, DIFFERENCES},
    "two variables' gradients swapped": GRADIENT,
    "gradients in bfloat16": GRADIENT,
    "norm of the gradient x 1.001": {NORM},
    "clipping to twice the norm": {COMMIT},
    "adaptive clipping twice as wide": {COMMIT},
    "variance between micro-batches left out": MOVING,
    "momentum of the statistics reversed": MOVING,
    "unbiased variance recorded": {STATISTICS},
    "recorded mean x 1.05": {EVALUATION},
    "Adam without bias correction": UPDATE,
    "Adam's epsilon x 1e4": UPDATE,
    "a half-life of half as many examples": {OPTIMIZER},
    "AdamW decays by L2": UPDATE,
    "decay twice": UPDATE,
    "no Nesterov": UPDATE,
    "momentum 0.99": {OPTIMIZER},
    "rates of patterns ignored": {COMMIT},
    "Adafactor: beta2 of the next update": UPDATE,
    "Adafactor: RMS of the weight x 1.01": UPDATE,
    "Adafactor: momentum the other way": UPDATE,
    "Keras's optimizer: one update behind": UPDATE,
    "Keras's optimizer: no decay": UPDATE,
    "the schedule read one update late": {RATE},
    "a warm-up longer by one update": {RATE},
    "a cosine of twice the length": {RATE},
    "rate x 1.00001": {RATE},
    "Adafactor: relative step of the next update": {RATE},
    "the average's decay 0.99 for 0.999": {AVERAGE},
    "the average counts from the next update": {AVERAGE},
    "the average keeps the share of the weight": {AVERAGE},
    "the average is never updated": {AVERAGE},
}
