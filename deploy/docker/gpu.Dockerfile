# Workers on GPU nodes: as cpu.Dockerfile, on a base with NVIDIA's CUDA libraries. Build it from the repository's root:
#
#   docker build -f deploy/docker/gpu.Dockerfile -t registry.example/headrace-gpu:0.1.0 .
#
# EXTRAS chooses the engines: `gpu` has cvcuda and what asks the driver, `dali` has dali-gpu; without a GPU the same image runs the
# CPU's. Like the other one it is linted and was never built on the project's own machines, and it never ran on a GPU. The
# libraries of CUDA 12 come with the extras; the node brings the driver.
FROM nvidia/cuda:12.8.1-base-ubuntu24.04 AS build
ARG EXTRAS=worker,gpu,dali,cli
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-venv gcc libc6-dev libjpeg-dev \
    && rm -rf /var/lib/apt/lists/*
ENV HEADRACE_NATIVE=require
WORKDIR /src
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY native ./native
COPY services ./services
RUN python3 -m venv /opt/headrace \
    && /opt/headrace/bin/pip install --no-cache-dir ".[${EXTRAS}]"

FROM nvidia/cuda:12.8.1-base-ubuntu24.04
# Ubuntu publishes one version of a package at a time, so that a pinned one cannot be had for long.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 headrace \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin headrace
COPY --from=build /opt/headrace /opt/headrace
# `video` is for the decoders of the GPU.
ENV PATH=/opt/headrace/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility,video
USER 10001:10001
ENTRYPOINT ["headrace"]
CMD ["--help"]
