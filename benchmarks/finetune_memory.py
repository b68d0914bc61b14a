"""Memory and time of fine-tuning a published model, beside Transformers and PEFT (an hour for each).

    .venv/bin/python benchmarks/finetune_memory.py --peer-python PYTHON    # one that has torch, transformers and peft
    .venv/bin/python benchmarks/finetune_memory.py --peer-python PYTHON --only "LoRA 8, AdamW" --rounds 3
    .venv/bin/python benchmarks/finetune_memory.py --peer-python PYTHON --model smollm2

bert is BERT-base, which tells the class of texts; smollm2 is SmolLM2-135M, which tells next tokens. Weights are random,
nothing is dropped out, and there is no weight decay. The rate is 2e-5: a batch that is learned by heart has gradients
below the normal numbers, with which a CPU computes slowly. The peak is that of all tensors, weights included, as in
bert_memory.py. Both sides take turns on a quiet machine, and ratios are by rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from compare import Case, started
from texts import Texts
from workbench import Table, by_rounds, in_turn

MB = 2**20
WARM_UP = 1  # turns before those that count; in it the peer looks at its memory
BERT = {  # config.json of bert-base-uncased, but for dropout
    "architectures": ["BertForSequenceClassification"],
    "model_type": "bert",
    "vocab_size": 30522,
    "type_vocab_size": 2,
    "max_position_embeddings": 512,
    "num_hidden_layers": 12,
    "hidden_size": 768,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 49152,
    "max_position_embeddings": 2048,
    "num_hidden_layers": 30,
    "hidden_size": 576,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
}


class Job(NamedTuple):
    """A model by its config.json, the texts that it learns, and the micro-batches of an update."""

    config: dict[str, Any]
    texts: Texts
    micro_batch: int
    steps: int

    def __str__(self) -> str:
        batch = f"{self.micro_batch} x {self.steps} texts of {self.texts.tokens} tokens"
        return f"{self.config['model_type']} of {self.config['hidden_size']} channels, {batch}"

    @property
    def tokens(self) -> int:
        """Those of an update."""
        return self.micro_batch * self.steps * self.texts.tokens


JOBS = {
    "bert": Job(BERT, Texts(tokens=128, vocabulary=30522), 32, 1),
    "smollm2": Job(SMOLLM2, Texts(tokens=512, vocabulary=49152, task="next_token"), 2, 4),
}


class Tuning(NamedTuple):
    """An optimizer, and the rank of adapters; None trains all tensors."""

    optimizer: str
    rank: int | None


TUNINGS = {
    "full, AdamW": Tuning("adamw", None),
    "full, Adafactor": Tuning("adafactor", None),
    "LoRA 8, AdamW": Tuning("adamw", 8),
}
POLICIES = {"store": "stored", "recompute": "recomputed"}


def compare(
    job: Job, folder: Path, tuning: Tuning, policy: str, python: str, rounds: int
) -> dict[str, list[dict[str, Any]]]:
    """Return what ours and theirs tell of each round."""
    ours = f"model=pretrained model.path={folder} model.memory={policy} optim.lr=2e-5 optim.weight_decay=0"
    theirs = ["--recompute"] if policy == "recompute" else []
    if tuning.rank is not None:
        ours += f" model.lora_rank={tuning.rank}"
        theirs += ["--lora-rank", str(tuning.rank)]
    case = Case(ours, str(folder), "float32", job.micro_batch, job.steps, job.texts, tuning.optimizer)
    workers = {
        "ours": started("ours", case, "--memory"),
        "theirs": started("finetune", case, "--memory", *theirs, python=python),
    }
    counts = {name: worker.answer()["parameters"] for name, worker in workers.items()}
    if counts["ours"] != counts["theirs"]:
        raise SystemExit(f"{ours}: what is trained is not the same, parameters {counts}")
    turns = {name: worker.turn for name, worker in workers.items()}
    in_turn(turns, WARM_UP)
    answers = in_turn(turns, rounds)
    for worker in workers.values():
        worker.close()
    return answers


def show(job: Job, python: str, names: list[str], policies: list[str], rounds: int) -> None:
    print(f"{job}, float32, {rounds} rounds. Peaks of tensors in MB.\n")
    table = Table(
        "", "activations", "M trained", "peak, ours", "theirs", "seconds, ours", "theirs", "ours / theirs, tokens/s"
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "config.json").write_text(json.dumps(job.config), encoding="utf-8")
        for name in names:
            for policy in policies:
                sides = [*compare(job, folder, TUNINGS[name], policy, python, rounds).values()]
                peaks = [f"{max(answer['tensor_peak_bytes'] for answer in side) / MB:.0f}" for side in sides]
                ours, theirs = ([job.tokens / answer["units_per_second"] for answer in side] for side in sides)
                taken = (f"{statistics.median(seconds):.2f}" for seconds in (ours, theirs))
                trained = f"{sides[0][-1]['parameters'] / 1e6:.2f}"
                table.row(name, POLICIES[policy], trained, *peaks, *taken, f"{by_rounds(theirs, ours):.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", default=sys.executable, help="a Python with torch, transformers and peft")
    parser.add_argument("--model", choices=JOBS, default="bert")
    parser.add_argument("--only", nargs="+", choices=TUNINGS, default=list(TUNINGS), metavar="TUNING")
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--rounds", type=int, default=5, help="updates of each side that count")
    options = parser.parse_args()
    show(JOBS[options.model], options.peer_python, options.only, options.policies, options.rounds)
