"""A linear layer with cross-entropy, forward and backward, in PyTorch."""

from __future__ import annotations

from linear_sizes import sizes_parser
from turns import Turns

parser = sizes_parser()
parser.add_argument("--compile", action="store_true")
options = parser.parse_args()
turns = Turns(units=1)

import torch  # noqa: E402
from torch_memory import bytes_at_peak  # noqa: E402

torch.manual_seed(0)
hidden = torch.randn(options.tokens, options.channels, requires_grad=True)
kernel = torch.nn.Parameter(0.02 * torch.randn(options.words, options.channels))
targets = torch.randint(0, options.words, [options.tokens])
dtype = getattr(torch, options.precision)


def compute_loss() -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
        logits = torch.nn.functional.linear(hidden, kernel)
    return torch.nn.functional.cross_entropy(logits.float(), targets, reduction="sum")


function = torch.compile(compute_loss) if options.compile else compute_loss


def differentiate() -> None:
    hidden.grad = kernel.grad = None
    function().backward()


beyond = 0
while turns.next():
    if not beyond:
        differentiate()  # compiled
        hidden.grad = kernel.grad = None
        beyond = bytes_at_peak(differentiate) - hidden.nbytes - kernel.nbytes
    else:
        differentiate()
    turns.done(bytes_beyond=beyond)
