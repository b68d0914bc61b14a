# accumtrain in a container.
#
#     docker build --tag accumtrain .
#     docker build --tag accumtrain:gpu --build-arg EXTRAS=gpu .
#     docker run --rm --init --stop-timeout 120 --volume "$PWD/runs:/srv/accumtrain/runs" accumtrain model=lenet5
#     docker run --rm --init --stop-timeout 120 --gpus all --volume "$PWD/runs:/srv/accumtrain/runs" accumtrain:gpu
#
# The GPU image brings CUDA's libraries; the host brings NVIDIA's driver and container toolkit.
ARG PYTHON=3.12
FROM python:${PYTHON}-slim
# of pyproject.toml, with commas between them: gpu, joblib, slurm
ARG EXTRAS=joblib

WORKDIR /usr/src/accumtrain
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY conf conf
COPY accumtrain accumtrain
RUN pip install --no-cache-dir --constraint constraints.txt ".[${EXTRAS}]"

# for the NVIDIA container toolkit; without a GPU they have no effect
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /srv/accumtrain
ENTRYPOINT ["accumtrain"]
