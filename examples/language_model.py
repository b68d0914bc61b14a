"""A reversible language model of your own texts, byte by byte. Here it reads Python's manual, and writes some more.

python examples/language_model.py                    # minutes on two cores
python examples/language_model.py stories/ "Once "   # a folder of texts, and a beginning
"""

import sys
from dataclasses import replace
from pathlib import Path
from pydoc_data.topics import topics

import accumtrain

folder, beginning = (*sys.argv[1:], *("manual", "The ")[len(sys.argv) - 1 :])
if folder == "manual":
    Path(folder).mkdir(exist_ok=True)
    for name, text in topics.items():
        Path(folder, f"{name}.txt").write_text(text, encoding="utf-8")

config = accumtrain.Config(
    model=accumtrain.RevDecoderConfig(),
    task=accumtrain.NextTokenConfig(),
    loss=accumtrain.TokenCrossEntropyConfig(),
    optim=accumtrain.AdamWConfig(lr=3e-3),
    data=accumtrain.TextsConfig(path=folder, length=128),
    batch_size=32,  # rows of 128 bytes, which texts fill one behind the other
    train=accumtrain.TrainConfig(steps=800),
    run=accumtrain.RunConfig(name="language-model"),
)
summary = accumtrain.run(config)

Path("beginnings.txt").write_text(beginning, encoding="utf-8")
drawn = accumtrain.PredictConfig(input="beginnings.txt", temperature=0.7)
accumtrain.run(replace(config, job="predict", predict=drawn))
print(f"test accuracy: {summary['test']['token_accuracy']:.4f}, bits per byte: {summary['test']['bits_per_byte']:.2f}")
