"""The updates of Transformers' Trainer on one batch of texts in memory, in PyTorch, with PEFT's adapters or without.

`--model` is a folder with config.json; the weights are random. As in the Trainer, AdamW is fused, Adafactor is that of
Transformers at a given rate, and there is no weight decay. It needs transformers and peft.
"""

from __future__ import annotations

from turns import Turns, arguments, units_of

options = arguments()
turns = Turns(units_of(options))

import torch  # noqa: E402
from peft import LoraConfig, get_peft_model  # noqa: E402
from torch import nn  # noqa: E402
from torch_memory import bytes_at_peak, moments  # noqa: E402
from transformers import (  # type: ignore[attr-defined] # noqa: E402
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
)
from transformers.optimization import Adafactor  # noqa: E402

RATE = 2e-5
ADAPTED = {"SEQ_CLS": ["query", "value"], "CAUSAL_LM": ["q_proj", "v_proj"]}


def main() -> None:
    torch.manual_seed(0)
    found = options.texts.examples(options.micro_batch)
    tokens, labels = (torch.from_numpy(found[name]).long() for name in ("tokens", "targets"))
    if options.texts.task == "next_token":
        labels = tokens  # the model looks at those behind
    inputs = {"input_ids": tokens.clamp(min=0), "attention_mask": (tokens >= 0).long(), "labels": labels}
    model = build()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = build_optimizer(trained)

    def update() -> None:
        for _ in range(options.steps):
            (model(**inputs).loss / options.steps).backward()
        optimizer.step()
        optimizer.zero_grad()

    facts = {"parameters": sum(parameter.numel() for parameter in trained)}
    while turns.next():
        if options.memory and optimizer.state and "tensor_peak_bytes" not in facts:  # after the first update
            held = [*model.parameters(), *model.buffers(), *moments(optimizer), *inputs.values()]
            tensors = [each for each in held if isinstance(each, torch.Tensor)]
            facts["tensor_peak_bytes"] = sum(tensor.nbytes for tensor in tensors) + bytes_at_peak(update)
        else:
            update()
        turns.done(**facts)


def build() -> nn.Module:
    if options.texts.task == "next_token":
        kind, model = "CAUSAL_LM", AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(options.model))
    else:
        config = AutoConfig.from_pretrained(options.model, num_labels=options.texts.outputs)
        kind, model = "SEQ_CLS", AutoModelForSequenceClassification.from_config(config)
    model.train()
    if options.recompute:
        model.activation_checkpointing_enable()
    if options.lora_rank is None:
        return model
    adapters = LoraConfig(
        task_type=kind, r=options.lora_rank, lora_alpha=options.lora_rank, target_modules=ADAPTED[kind]
    )
    return get_peft_model(model, adapters)


def build_optimizer(trained: list[nn.Parameter]) -> torch.optim.Optimizer:
    if options.optimizer == "adafactor":
        return Adafactor(trained, lr=RATE, scale_parameter=False, relative_step=False)
    return torch.optim.AdamW(trained, RATE, weight_decay=0.0, fused=True)


if __name__ == "__main__":
    main()
