/* Weights of one axis of the resize: a triangle whose support grows with the scale, cut off at the edges and normalised, rounded to
   22 bits. The numbers are those of Pillow's BILINEAR, computed in the same order in IEEE doubles (built without contraction). */
#include "headrace_native.h"

#include <stdlib.h>
#include <string.h>

int hn_reserve(hn_buffer *buffer, size_t count, size_t item) {
  if (item && count > HN_MAX_BYTES / item) return HN_NO_MEMORY;
  size_t size = count * item + HN_SLACK;
  if (buffer->size >= size) return HN_OK;
  hn_release(buffer);
  buffer->bytes = malloc(size);
  if (!buffer->bytes) return HN_NO_MEMORY;
  buffer->size = size;
  return HN_OK;
}

void hn_release(hn_buffer *buffer) {
  free(buffer->bytes);
  buffer->bytes = NULL;
  buffer->size = 0;
}

typedef struct {
  double scale, support, in;
} filter;

static filter make_filter(int64_t in, int64_t out) {
  double scale = (double)in / (double)out;
  return (filter){scale, scale < 1.0 ? 1.0 : scale, (double)in};
}

/* The inputs [*from, *to) that output i sees. */
static void reach(const filter *f, int64_t i, int64_t *from, int64_t *to) {
  double center = ((double)i + 0.5) * f->scale;
  double low = center - f->support + 0.5, high = center + f->support + 0.5;
  *from = low < 0 ? 0 : (int64_t)low;
  *to = high > f->in ? (int64_t)f->in : (int64_t)high;
}

static double triangle(double x) {
  if (x < 0) x = -x;
  return x < 1.0 ? 1.0 - x : 0.0;
}

/* Weights of output i into row[0 .. 2 * pairs). raw: room for as many doubles. */
static void weigh(const filter *f, int64_t i, int64_t from, int64_t to, double *raw, hn_weights *row) {
  double center = ((double)i + 0.5) * f->scale, sharpness = 1.0 / f->support, sum = 0.0;
  int64_t taps = to - from;
  for (int64_t t = 0; t < taps; t++) {
    raw[t] = triangle(((double)(t + from) - center + 0.5) * sharpness);
    sum += raw[t];
  }
  for (int64_t t = 0; t < taps; t++) {
    double weight = sum != 0.0 ? raw[t] / sum : raw[t];
    int32_t whole = (int32_t)(0.5 + weight * (double)(1 << HN_PRECISION));
    int shift = t & 1 ? 16 : 0;
    row[t / 2].upper |= (whole >> HN_LOWER_BITS) << shift;
    row[t / 2].lower |= (whole & ((1 << HN_LOWER_BITS) - 1)) << shift;
  }
}

int hn_plan_axis(hn_axis *axis, int64_t in, int64_t out, int64_t window, int64_t count, int mirror) {
  filter f = make_filter(in, out);
  int64_t most = 0, first = in, last = 0, from, to;
  for (int64_t i = window; i < window + count; i++) {
    reach(&f, i, &from, &to);
    if (to - from > most) most = to - from;
    if (from < first) first = from;
    if (to > last) last = to;
  }
  int64_t pairs = (most + 1) / 2, taps = 2 * pairs;
  size_t per_output = sizeof(int32_t) + (size_t)pairs * sizeof(hn_weights);
  if ((size_t)count > HN_MAX_BYTES / per_output) return HN_NO_MEMORY;
  /* Doubles first, for their alignment; then weights, then starts. */
  size_t raw_bytes = (size_t)taps * sizeof(double), weight_bytes = (size_t)(count * pairs) * sizeof(hn_weights);
  if (hn_reserve(&axis->memory, raw_bytes + (size_t)count * per_output, 1)) return HN_NO_MEMORY;
  double *raw = (double *)(void *)axis->memory.bytes;
  axis->rows = (const uint8_t **)(void *)raw; /* once the weights are made */
  axis->weights = (hn_weights *)(void *)(axis->memory.bytes + raw_bytes);
  axis->start = (int32_t *)(void *)(axis->memory.bytes + raw_bytes + weight_bytes);
  memset(axis->weights, 0, weight_bytes);
  for (int64_t i = 0; i < count; i++) {
    int64_t at = window + (mirror ? count - 1 - i : i);
    reach(&f, at, &from, &to);
    axis->start[i] = (int32_t)(from - first);
    weigh(&f, at, from, to, raw, axis->weights + i * pairs);
  }
  axis->in = in;
  axis->out = out;
  axis->count = count;
  axis->pairs = pairs;
  axis->first = first;
  axis->length = last - first;
  return HN_OK;
}
