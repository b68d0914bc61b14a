# accumtrain in a container.
#
#     docker build --tag accumtrain .
#     docker build --tag accumtrain:gpu --build-arg EXTRAS=gpu .
#     mkdir -p runs cache
#     docker run --rm --init --stop-timeout 120 --user "$(id -u):$(id -g)" --volume "$PWD/runs:/srv/accumtrain/runs" \
#         --volume "$PWD/cache:/srv/accumtrain/cache" accumtrain model=lenet5
#
# with --gpus all before accumtrain:gpu. The GPU image brings CUDA's libraries; the host brings NVIDIA's driver and
# container toolkit.
ARG PYTHON=3.12
FROM python:${PYTHON}-slim
# of pyproject.toml, with commas between them: gpu, joblib, datasets, tokenizers, pretrained, kerashub, onnx, slurm, mlflow, wandb, jax, jax-cuda13, jax-tpu
ARG EXTRAS=joblib

WORKDIR /usr/src/accumtrain
COPY pyproject.toml README.md LICENSE ./
COPY requirements/constraints.txt requirements/
COPY conf conf
COPY accumtrain accumtrain
RUN pip install --no-cache-dir --constraint requirements/constraints.txt ".[${EXTRAS}]"

# for the NVIDIA container toolkit; without a GPU they have no effect
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
# indexes of TFRecord files (docs/cluster.md), if a volume is mounted there; a user of --user has no home for it
ENV XDG_CACHE_HOME=/srv/accumtrain/cache MPLCONFIGDIR=/srv/accumtrain/cache/matplotlib
WORKDIR /srv/accumtrain
ENTRYPOINT ["accumtrain"]
