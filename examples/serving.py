"""Serves an export over HTTP, without accumtrain: python serving.py runs/cats/savedmodel 8000

curl --data-binary @photo.jpg http://localhost:8000
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import tensorflow as tf

FOLDER, PORT = Path(sys.argv[1]), int(sys.argv[2])
LARGEST = 2**25  # bytes of a photo
NAMES = json.loads((FOLDER / "assets" / "class_names.json").read_text())
LOADED = tf.saved_model.load(str(FOLDER))  # kept, because it owns the weights
PREDICT = LOADED.signatures["serving_default"]
CHANNELS = PREDICT.structured_input_signature[1]["images"].shape[-1]


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length", 0))
        try:
            photo = self.rfile.read(size) if size <= LARGEST else b""
            image = tf.io.decode_image(photo, channels=CHANNELS, expand_animations=False)
        except tf.errors.InvalidArgumentError:
            self.send_error(400, "no photo that can be decoded")
            return
        (values,) = PREDICT(images=image[None])["probabilities"].numpy().tolist()
        answer = dict(sorted(zip(NAMES, values, strict=True), key=lambda pair: -pair[1]))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())


with HTTPServer(("localhost", PORT), Handler) as server:
    print(f"http://localhost:{server.server_port}", flush=True)
    server.serve_forever()
