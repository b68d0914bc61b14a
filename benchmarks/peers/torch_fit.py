"""PyTorch's updates on one batch in memory: channels_last, fused Adam, autocast for bfloat16. Eager, as it is used, or
with `--compile` by torch.compile.

On a GPU if there is one, with cuDNN's kernels chosen by their time and float32 in TensorFloat-32.
The models are accumtrain's ResNets and transformers, layer for layer. ResNets are pre-activation, as the RevNet authors
built their baselines.
"""

from __future__ import annotations

from typing import Any

from turns import Turns, arguments, units_of

options = arguments()
turns = Turns(units_of(options))

import torch  # noqa: E402
from sizes import DECODERS, ENCODERS, GATED_RATIO, VITS  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch_memory import bytes_at_peak, moments  # noqa: E402
from torch_transformers import Decoder, Encoder, VisionTransformer  # noqa: E402

# units of each stage, filters of the stem and of each stage, bottleneck, classes
MODELS = {
    "resnet20": ([3, 3, 3], [16, 16, 32, 64], False, 10),
    "resnet32": ([5, 5, 5], [16, 16, 32, 64], False, 10),
    "resnet50": ([3, 4, 6, 3], [64, 64, 128, 256, 512], True, 1000),
    "resnet101": ([3, 4, 23, 3], [64, 64, 128, 256, 512], True, 1000),
}


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = torch.backends.cuda.matmul.allow_tf32 = True
    model = build(options.model).to(device)
    optimizer = build_optimizer(model)
    *inputs, labels = (tensor.to(device) for tensor in one_batch(model.outputs))
    low = options.precision == "bfloat16"
    forward: Any = torch.compile(model) if options.compile else model

    def update() -> None:
        for _ in range(options.steps):
            with torch.autocast(device, torch.bfloat16, enabled=low):
                logits = forward(*inputs)
            loss = functional.cross_entropy(logits.float().flatten(0, -2), labels.flatten(), ignore_index=-1)
            loss = loss / options.steps
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if device == "cuda":
            torch.cuda.synchronize()
            facts["gpu_peak_bytes"] = torch.cuda.max_memory_allocated()

    facts = {"parameters": sum(parameter.numel() for parameter in model.parameters())}
    while turns.next():
        if options.memory and optimizer.state and "tensor_peak_bytes" not in facts:  # after the first update
            held = [*model.parameters(), *model.buffers(), *moments(optimizer), *inputs, labels]
            facts["tensor_peak_bytes"] = sum(tensor.nbytes for tensor in held) + bytes_at_peak(update)
        else:
            update()
        turns.done(**facts)


def build_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    if options.optimizer == "adafactor":
        return torch.optim.Adafactor(model.parameters())
    return torch.optim.Adam(model.parameters(), 1e-3, fused=True)


def one_batch(outputs: int) -> list[Tensor]:
    """Return inputs and labels: normal noise with classes in turn, or texts."""
    if options.texts:
        found = options.texts.examples(options.micro_batch)
        names = ("tokens", "positions", "targets")
        return [torch.from_numpy(found[name]).long() for name in names if name in found]
    images = torch.randn(options.micro_batch, 3, options.image_size, options.image_size)
    images = images.contiguous(memory_format=torch.channels_last)
    return [images, torch.arange(options.micro_batch) % outputs]


class ResNet(nn.Module):
    """Stem (3x3, or 7x7/2 and 3x3/2 max-pooling for bottlenecks), units, norm, ReLU, average, dense."""

    def __init__(self, units: list[int], filters: list[int], bottleneck: bool, classes: int):
        super().__init__()
        stem, *filters = filters
        widths = [stem] + [width * (4 if bottleneck else 1) for width in filters]
        self.bottleneck = bottleneck
        self.conv = convolution(3, stem, 7, 2) if bottleneck else convolution(3, stem, 3, 1)
        self.norm = norm(stem)
        parts = []
        for stage, count in enumerate(units):
            for unit in range(count):
                inputs = widths[stage] if unit == 0 else widths[stage + 1]
                stride = 2 if stage > 0 and unit == 0 else 1
                parts.append(Unit(inputs, widths[stage + 1], stride, bottleneck, stage > 0 or unit > 0))
        self.units = nn.Sequential(*parts)
        self.last_norm = norm(widths[-1])
        self.dense, self.outputs = nn.Linear(widths[-1], classes), classes

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x))
        if self.bottleneck:
            x = functional.max_pool2d(x, 3, 2, 1)
        x = functional.relu(x, inplace=True)
        x = functional.relu(self.last_norm(self.units(x)), inplace=True)
        return self.dense(x.mean((2, 3)))


class Unit(nn.Module):
    """y = shortcut(x) + residual(x); norm and ReLU before every convolution but the network's first."""

    def __init__(self, inputs: int, outputs: int, stride: int, bottleneck: bool, preactivated: bool):
        super().__init__()
        inner = outputs // 4 if bottleneck else outputs
        sizes = (1, 3, 1) if bottleneck else (3, 3)
        widths = (inputs, *[inner] * (len(sizes) - 1), outputs)
        self.norms = nn.ModuleList(
            norm(width) if i or preactivated else nn.Identity() for i, width in enumerate(widths[:-1])
        )
        self.convs = nn.ModuleList(
            convolution(widths[i], widths[i + 1], size, stride if i == 0 else 1) for i, size in enumerate(sizes)
        )
        self.preactivated = preactivated
        changes = inputs != outputs or stride > 1
        self.projection = convolution(inputs, outputs, 1, stride) if changes and bottleneck else None
        self.missing = outputs - inputs if changes and not bottleneck else 0

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for i, (normalise, conv) in enumerate(zip(self.norms, self.convs, strict=True)):
            if i or self.preactivated:
                y = functional.relu(normalise(y), inplace=True)
            y = conv(y)
        if self.projection is not None:
            x = self.projection(x)
        elif self.missing:
            x = functional.avg_pool2d(x, 2)
            x = functional.pad(x, (0, 0, 0, 0, self.missing // 2, self.missing - self.missing // 2))
        return y + x


def convolution(inputs: int, outputs: int, size: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


def norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3)


def build(name: str) -> nn.Module:
    if name in DECODERS:
        size = DECODERS[name]
        return Decoder(options.texts.vocabulary, *size, hidden=int(GATED_RATIO * size.width))
    if name in ENCODERS:
        return Encoder(ENCODERS[name], options.texts)
    if name in VITS:
        return VisionTransformer(VITS[name], options.image_size, classes=1000).to(memory_format=torch.channels_last)
    return ResNet(*MODELS[name]).to(memory_format=torch.channels_last)


if __name__ == "__main__":
    main()
