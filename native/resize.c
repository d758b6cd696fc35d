/* The resize: two passes, each a sum of 22-bit weights rounded half up to 8 bits. This is Pillow's order and precision, so the result
   is Pillow's, bit for bit. */
#include "headrace_native.h"

#include <string.h>

typedef struct {
  hn_across *across;
  hn_down *down;
} passes;

static passes choose(int isa) {
#if defined(__x86_64__)
  if (isa >= HN_AVX2) return (passes){hn_across_avx2, hn_down_avx2};
  if (isa >= HN_SSE41) return (passes){hn_across_sse41, hn_down_sse41};
#endif
  (void)isa;
  return (passes){hn_across_scalar, hn_down_scalar};
}

int hn_best_isa(void) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2")) return HN_AVX2;
  if (__builtin_cpu_supports("sse4.1")) return HN_SSE41;
#endif
  return HN_SCALAR;
}

static uint8_t settle(uint32_t sum) {
  uint32_t level = (sum + (1u << (HN_PRECISION - 1))) >> HN_PRECISION;
  return level > 255 ? 255 : (uint8_t)level;
}

static uint32_t weight(const hn_weights *pair, int which) {
  int shift = which ? 16 : 0;
  uint32_t upper = ((uint32_t)pair->upper >> shift) & 0xffff, lower = ((uint32_t)pair->lower >> shift) & 0xffff;
  return (upper << HN_LOWER_BITS) + lower;
}

void hn_across_scalar(const uint8_t *const in[2], const hn_axis *axis, uint8_t *const out[2]) {
  for (int row = 0; row < 2; row++) {
    for (int64_t i = 0; i < axis->count; i++) {
      const uint8_t *pixel = in[row] + 3 * (size_t)axis->start[i];
      const hn_weights *pair = axis->weights + i * axis->pairs;
      uint32_t sums[3] = {0, 0, 0};
      for (int64_t p = 0; p < axis->pairs; p++, pair++, pixel += 6) {
        uint32_t left = weight(pair, 0), right = weight(pair, 1);
        for (int c = 0; c < 3; c++) sums[c] += left * pixel[c] + right * pixel[3 + c];
      }
      for (int c = 0; c < 3; c++) out[row][3 * i + c] = settle(sums[c]);
    }
  }
}

void hn_down_scalar(const uint8_t *const *rows_of, const hn_weights *weights, int64_t pairs, uint8_t *out, size_t bytes) {
  enum { BLOCK = 256 };
  uint32_t sums[BLOCK];
  for (size_t at = 0; at < bytes; at += BLOCK) {
    size_t width = bytes - at < BLOCK ? bytes - at : BLOCK;
    memset(sums, 0, sizeof sums);
    for (int64_t p = 0; p < pairs; p++) {
      const uint8_t *above = rows_of[2 * p] + at, *below = rows_of[2 * p + 1] + at;
      uint32_t upper = weight(weights + p, 0), lower = weight(weights + p, 1);
      for (size_t i = 0; i < width; i++) sums[i] += upper * above[i] + lower * below[i];
    }
    for (size_t i = 0; i < width; i++) out[at + i] = settle(sums[i]);
  }
}

/* Bytes of the place to which a row is copied if its pixels end too near to the view's end for vector loads. */
static size_t tail_stride(const hn_axis *across) { return 3 * ((size_t)across->length + 2 * (size_t)across->pairs) + HN_SLACK; }

/* Bytes from row to row where vector stores may write beyond a row. */
static size_t padded_stride(const hn_axis *across) { return (3 * (size_t)across->count + 2 * HN_SLACK - 1) / HN_SLACK * HN_SLACK; }

/* Rows y and y + 1 of the view, the last one alone if `rows` is odd, to out[]. */
static void run_across(hn_across *pass, const hn_view *view, const hn_axis *across, int64_t y, int64_t rows, uint8_t *const out[2],
                       uint8_t *tail) {
  const uint8_t *in[2];
  size_t room = tail_stride(across);
  for (int i = 0; i < 2; i++) {
    in[i] = view->first + hn_clamp(y + i, rows) * view->stride + 3 * (size_t)across->first;
    if ((size_t)(view->end - in[i]) < room) in[i] = memcpy(tail + (size_t)i * room, in[i], 3 * (size_t)across->length);
  }
  pass(in, across, out);
}

/* Output row i from the rows at `first`, of which the axis's inputs begin. */
static void run_down(hn_down *pass, const uint8_t *first, size_t stride, const hn_axis *down, int64_t i, uint8_t *out, size_t bytes) {
  for (int64_t t = 0; t < 2 * down->pairs; t++) down->rows[t] = first + hn_clamp(down->start[i] + t, down->length) * stride;
  pass(down->rows, down->weights + i * down->pairs, down->pairs, out, bytes);
}

int hn_begin_across(hn_across_run *run, int isa, const hn_axis *across, const hn_axis *down, hn_buffer *between) {
  size_t stride = padded_stride(across), room = 2 * tail_stride(across);
  if ((size_t)down->length > HN_MAX_BYTES / stride) return HN_NO_MEMORY;
  if (hn_reserve(between, (size_t)down->length * stride + room, 1)) return HN_NO_MEMORY;
  *run = (hn_across_run){isa, across, down, between->bytes, stride, between->bytes + (size_t)down->length * stride};
  memset(run->tail, 0, room);
  return HN_OK;
}

void hn_feed_across(hn_across_run *run, const hn_view *view, int64_t first, int64_t rows) {
  hn_across *pass = choose(run->isa).across;
  for (int64_t y = 0; y < rows; y += 2) {
    uint8_t *out[2];
    for (int i = 0; i < 2; i++) out[i] = run->rows + ((size_t)first + hn_clamp(y + i, rows)) * run->stride;
    run_across(pass, view, run->across, y, rows, out, run->tail);
  }
}

void hn_end_across(const hn_across_run *run, const hn_target *target) {
  hn_down *pass = choose(run->isa).down;
  for (int64_t i = 0; i < run->down->count; i++) {
    run_down(pass, run->rows, run->stride, run->down, i, target->pixels + (size_t)i * target->stride, target->width_bytes);
  }
}

static int across_first(int isa, const hn_view *view, const hn_axis *across, const hn_axis *down, const hn_target *target,
                        hn_buffer *between) {
  hn_across_run run;
  if (hn_begin_across(&run, isa, across, down, between)) return HN_NO_MEMORY;
  hn_view used = *view;
  used.first += (size_t)down->first * view->stride;
  hn_feed_across(&run, &used, 0, down->length);
  hn_end_across(&run, target);
  return HN_OK;
}

static int down_first(int isa, const hn_view *view, const hn_axis *across, const hn_axis *down, const hn_target *target,
                      hn_buffer *between) {
  passes with = choose(isa);
  size_t stride = 3 * (size_t)across->length, padded = padded_stride(across);
  if ((size_t)down->count > HN_MAX_BYTES / stride) return HN_NO_MEMORY;
  size_t rows_bytes = (size_t)down->count * stride, rest = 2 * (tail_stride(across) + padded);
  if (hn_reserve(between, rows_bytes + rest, 1)) return HN_NO_MEMORY;
  uint8_t *tail = between->bytes + rows_bytes, *finished[2] = {tail + rest - 2 * padded, tail + rest - padded};
  memset(tail, 0, 2 * tail_stride(across));
  const uint8_t *first = view->first + (size_t)down->first * view->stride + 3 * (size_t)across->first;
  for (int64_t i = 0; i < down->count; i++) {
    run_down(with.down, first, view->stride, down, i, between->bytes + (size_t)i * stride, stride);
  }
  hn_view rows = {between->bytes, stride, tail};
  hn_axis columns = *across;
  columns.first = 0;
  for (int64_t y = 0; y < down->count; y += 2) {
    run_across(with.across, &rows, &columns, y, down->count, finished, tail);
    for (int64_t i = y; i < y + 2 && i < down->count; i++) {
      memcpy(target->pixels + (size_t)i * target->stride, finished[i - y], target->width_bytes);
    }
  }
  return HN_OK;
}

int hn_is_down_first(const hn_axis *across, const hn_axis *down) {
  int64_t lower = down->in - down->out, narrower = across->in - across->out;
  return lower > 0 && lower > 2 * narrower;
}

int hn_run_resize(int isa, const hn_view *view, const hn_axis *across, const hn_axis *down, const hn_target *target,
                  hn_buffer *between) {
  return (hn_is_down_first(across, down) ? down_first : across_first)(isa, view, across, down, target, between);
}

int hn_resize(int isa, const uint8_t *pixels, int64_t height, int64_t width, int64_t stride, uint8_t *out, int64_t out_height,
              int64_t out_width) {
  int64_t sides[4] = {height, width, out_height, out_width};
  for (int i = 0; i < 4; i++) {
    if (sides[i] < 1 || sides[i] > HN_MAX_SIDE) return HN_BAD_ARGUMENT;
  }
  if (stride < 3 * width || (size_t)height > HN_MAX_BYTES / (size_t)stride) return HN_BAD_ARGUMENT;
  hn_axis across = {0}, down = {0};
  hn_buffer between = {0};
  hn_view view = {pixels, (size_t)stride, pixels + (size_t)(height - 1) * (size_t)stride + 3 * (size_t)width};
  hn_target target = {out, 3 * (size_t)out_width, 3 * (size_t)out_width};
  int status = hn_plan_axis(&across, width, out_width, 0, out_width, 0);
  if (!status) status = hn_plan_axis(&down, height, out_height, 0, out_height, 0);
  if (!status) status = hn_run_resize(isa, &view, &across, &down, &target, &between);
  hn_release(&across.memory);
  hn_release(&down.memory);
  hn_release(&between);
  return status;
}
