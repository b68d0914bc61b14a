"""python use.py model.tflite photo: an exported model asked about a photo, without accumtrain."""

import json
import sys
import zipfile

import numpy as np
import tensorflow as tf
from PIL import Image

model, photo = sys.argv[1:]
names = json.loads(zipfile.ZipFile(model).read("class_names.json"))
answer = tf.lite.Interpreter(model).get_signature_runner()
image = np.asarray(Image.open(photo).convert("RGB"))[None]
(probabilities,) = answer(images=image)["probabilities"]
best = int(np.argmax(probabilities))
print(f"{photo}: {names[best]} ({probabilities[best]:.1%})")
