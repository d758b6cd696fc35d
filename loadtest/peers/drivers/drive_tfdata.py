"""tf.data, in the consuming process or as a service of two more processes (dispatcher, worker)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf
from consumer import main, photo_paths
from cuts import CENTER, RATIO, SCALE, SHORTER, TRIES

SERVICE = tf.data.experimental.service


def _round(image):
    return tf.cast(tf.clip_by_value(tf.round(image), 0, 255), tf.uint8)


def _cut(data, window, mirrored, size, antialias):
    image = tf.image.decode_and_crop_jpeg(data, window, channels=3)
    image = tf.image.resize(image, (size, size), antialias=antialias)
    return _round(tf.cond(mirrored, lambda: tf.reverse(image, [1]), lambda: image))


def _evaluated(data, antialias):
    image = tf.image.decode_jpeg(data, channels=3)
    shape = tf.cast(tf.shape(image)[:2], tf.float64)
    sides = tf.cast(SHORTER * shape / tf.reduce_min(shape), tf.int32)
    image = tf.image.resize(image, sides, antialias=antialias)
    top, left = (tf.cast(tf.round(tf.cast(side - CENTER, tf.float64) / 2), tf.int32) for side in (sides[0], sides[1]))
    return _round(tf.ensure_shape(image[top : top + CENTER, left : left + CENTER], (CENTER, CENTER, 3)))


def _random_window(data):
    shape = tf.image.extract_jpeg_shape(data)
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        shape,
        bounding_boxes=tf.zeros((1, 0, 4)),
        area_range=SCALE,
        aspect_ratio_range=RATIO,
        max_attempts=TRIES,
        use_image_if_no_bounding_boxes=True,
    )
    return tf.stack([begin[0], begin[1], size[0], size[1]])


def _dataset(task):
    antialias = task.options["antialias"]

    def make(path):
        data = tf.io.read_file(path)
        if task.work != "train":
            return _evaluated(data, antialias)
        return _cut(data, _random_window(data), tf.random.uniform(()) < 0.5, task.size, antialias)

    paths = tf.data.Dataset.from_tensor_slices(photo_paths(task))
    made = paths.shuffle(task.photos).repeat().map(make, tf.data.AUTOTUNE, deterministic=False)
    return made.batch(task.batch, drop_remainder=True)


def batches(task):
    """See consumer.Batches."""
    data = _dataset(task)
    processes = []
    try:
        if task.options["service"]:
            dispatcher = f"127.0.0.1:{_free_port()}"
            for role in ("dispatcher", "worker"):
                command = [sys.executable, __file__, role, dispatcher, str(_free_port())]
                processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL))
            # compression=None: photos of uint8 hardly shrink, and the service is faster without.
            data = data.apply(SERVICE.distribute("parallel_epochs", f"grpc://{dispatcher}", compression=None))
        yield from data.prefetch(tf.data.AUTOTUNE).as_numpy_iterator()
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _serve(role, dispatcher, port):
    if role == "dispatcher":
        server = SERVICE.DispatchServer(SERVICE.DispatcherConfig(port=int(dispatcher.rpartition(":")[2])))
    else:
        config = SERVICE.WorkerConfig(dispatcher, worker_address=f"127.0.0.1:{port}", port=int(port))
        server = SERVICE.WorkerServer(config)
    server.join()


def pixels(task, cuts):
    """See consumer.Pixels."""
    paths, antialias = photo_paths(task), task.options["antialias"]
    made = []
    for number, *box, mirrored in cuts:
        data = tf.io.read_file(paths[number])
        one = _cut(data, box, mirrored == 1, task.size, antialias) if task.work == "train" else _evaluated(data, antialias)
        made.append(one)
    return tf.stack(made).numpy()


if __name__ == "__main__":
    if sys.argv[1] in ("dispatcher", "worker"):
        _serve(*sys.argv[1:])
    else:
        main(batches, pixels)
