# Coordinators, CPU workers, the command line, and the chart's example trainer. Build it from the repository's root:
#
#   docker build -f deploy/docker/cpu.Dockerfile -t registry.example/headrace:0.1.0 .
#
# EXTRAS=coordinator,worker,cli,dali adds the engine `dali`, which works on the CPU, too, and half a gigabyte.
#
# The project's own machines have no registry to pull the base from: this file is linted, and its steps were run without a
# container, but the image was never built there. Python 3.11 is what the tests run on.
FROM python:3.11-slim-bookworm AS build
ARG EXTRAS=coordinator,worker,cli
# The engine's native core is compiled by the install. It is required: images with and without it have other fingerprints, and a
# fleet of both would serve a job with one half of its workers.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev libjpeg-dev \
    && rm -rf /var/lib/apt/lists/*
ENV HEADRACE_NATIVE=require
WORKDIR /src
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY native ./native
COPY services ./services
RUN python -m venv /opt/headrace \
    && /opt/headrace/bin/pip install --no-cache-dir ".[${EXTRAS}]"

FROM python:3.11-slim-bookworm
# The chart runs pods as this user; nothing in the image is his to write.
RUN groupadd --gid 10001 headrace \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin headrace
COPY --from=build /opt/headrace /opt/headrace
ENV PATH=/opt/headrace/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
# As a list: the program is process 1 and gets SIGTERM itself, which is how a worker is drained.
ENTRYPOINT ["headrace"]
CMD ["--help"]
