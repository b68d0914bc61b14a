"""PyTorch's updates on one batch in memory: channels_last, fused Adam, autocast for bfloat16. Eager, as it is used.

On a GPU if there is one, with cuDNN's kernels chosen by their time and float32 in TensorFloat-32.
"""

from __future__ import annotations

from turns import Turns, arguments

options = arguments()
turns = Turns(options.micro_batch * options.steps)

import torch  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch_models import build  # noqa: E402


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = torch.backends.cuda.matmul.allow_tf32 = True
    model = build(options.model).to(device)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, fused=True)
    images = torch.randn(options.micro_batch, 3, options.image_size, options.image_size)
    images = images.to(device, memory_format=torch.channels_last)
    labels = (torch.arange(options.micro_batch) % model.dense.out_features).to(device)
    low = options.precision == "bfloat16"

    def update() -> None:
        for _ in range(options.steps):
            with torch.autocast(device, torch.bfloat16, enabled=low):
                logits = model(images)
            loss = functional.cross_entropy(logits.float(), labels) / options.steps
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if device == "cuda":
            torch.cuda.synchronize()
            facts["gpu_peak_bytes"] = torch.cuda.max_memory_allocated()

    facts = {"parameters": sum(parameter.numel() for parameter in model.parameters())}
    while turns.next():
        update()
        turns.done(**facts)
        facts.clear()


if __name__ == "__main__":
    main()
