"""PyTorch's updates on one batch in memory: channels_last, fused Adam, autocast for bfloat16. Eager, as it is used."""

from __future__ import annotations

from turns import Turns, arguments

options = arguments()
turns = Turns(options.micro_batch * options.steps)

import torch  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch_models import build  # noqa: E402


def main() -> None:
    torch.manual_seed(0)
    model = build(options.model)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, fused=True)
    images = torch.randn(options.micro_batch, 3, options.image_size, options.image_size)
    images = images.to(memory_format=torch.channels_last)
    labels = torch.arange(options.micro_batch) % model.dense.out_features
    low = options.precision == "bfloat16"

    def update() -> None:
        for _ in range(options.steps):
            with torch.autocast("cpu", torch.bfloat16, enabled=low):
                logits = model(images)
            loss = functional.cross_entropy(logits.float(), labels) / options.steps
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    facts = {"parameters": sum(parameter.numel() for parameter in model.parameters())}
    while turns.next():
        update()
        turns.done(**facts)
        facts = {}


if __name__ == "__main__":
    main()
