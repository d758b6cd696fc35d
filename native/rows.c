/* A batch's rows, one after the other: decode the region, turn it upright, resize, mirror, into the slot. */
#include "headrace_native.h"

#include <string.h>
#include <time.h>

/* What is kept from row to row of one call. */
typedef struct {
  hn_buffer decoded, upright, between;
  hn_axis across, down;
} scratch;

/* One row's work. */
typedef struct {
  const hn_libjpeg *libjpeg;
  int isa;
  const uint8_t *data;
  const hn_row *row;
  scratch *s;
} task;

int hn_abi(void) { return HN_ABI; }

static int64_t now_ns(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int within(int64_t at, int64_t length, int64_t whole) {
  return at >= 0 && length >= 1 && whole >= length && at <= whole - length;
}

/* Whether a row's numbers fit together, whatever they are. */
static int sound(const hn_row *row, const hn_output *output) {
  int turned = row->orientation >= 5;
  int64_t height = turned ? row->width : row->height, width = turned ? row->height : row->width;
  return row->data_bytes > 0 && row->width >= 1 && row->height >= 1 && row->width <= 65535 && row->height <= 65535 &&
         row->orientation >= 1 && row->orientation <= 8 && within(row->box_y, row->box_height, height) &&
         within(row->box_x, row->box_width, width) && row->size_height <= HN_MAX_SIDE && row->size_width <= HN_MAX_SIDE &&
         within(row->window_y, output->height, row->size_height) && within(row->window_x, output->width, row->size_width) &&
         row->place >= 0 && row->place < output->rows;
}

static int is_scaled(const hn_row *row) { return row->size_height != row->box_height || row->size_width != row->box_width; }
static int transposed(int64_t orientation) { return orientation >= 5; }
static int mirrored(int64_t o) { return o == 2 || o == 3 || o == 6 || o == 7; }
static int flipped(int64_t o) { return o == 3 || o == 4 || o == 7 || o == 8; }

/* The box of the stored image that a box of the upright one shows. */
static hn_box stored_box(const hn_row *row, hn_box box) {
  int64_t height = transposed(row->orientation) ? row->width : row->height;
  int64_t width = transposed(row->orientation) ? row->height : row->width;
  if (flipped(row->orientation)) box.y = height - box.y - box.height;
  if (mirrored(row->orientation)) box.x = width - box.x - box.width;
  return transposed(row->orientation) ? (hn_box){box.x, box.y, box.width, box.height} : box;
}

/* Copies height x width pixels, turned as an orientation says: out[y][x] is at y * down + x * right, once transposed and mirrored. */
static void copy_turned(const hn_view *from, int transpose, int mirror, int flip, uint8_t *out, size_t out_stride, int64_t height,
                        int64_t width) {
  ptrdiff_t down = transpose ? 3 : (ptrdiff_t)from->stride, right = transpose ? (ptrdiff_t)from->stride : 3;
  const uint8_t *first = from->first;
  if (flip) {
    first += (height - 1) * down;
    down = -down;
  }
  if (mirror) {
    first += (width - 1) * right;
    right = -right;
  }
  for (int64_t y = 0; y < height; y++) {
    const uint8_t *in = first + y * down;
    uint8_t *to = out + (size_t)y * out_stride;
    if (right == 3) {
      memcpy(to, in, 3 * (size_t)width);
      continue;
    }
    for (int64_t x = 0; x < width; x++, in += right, to += 3) {
      to[0] = in[0];
      to[1] = in[1];
      to[2] = in[2];
    }
  }
}

/* Turns the decoded region upright, if it is not. */
static int make_upright(const hn_row *row, const hn_box *box, hn_view *view, hn_buffer *buffer) {
  if (row->orientation == 1) return HN_OK;
  size_t stride = 3 * (size_t)box->width;
  if (hn_reserve(buffer, (size_t)box->height, stride)) return HN_NO_MEMORY;
  copy_turned(view, transposed(row->orientation), mirrored(row->orientation), flipped(row->orientation), buffer->bytes, stride,
              box->height, box->width);
  *view = (hn_view){buffer->bytes, stride, buffer->bytes + buffer->size};
  return HN_OK;
}

/* The part of the upright image that the row's pixels come from, with its axes planned; an axis begins at the part's edge. */
static int plan(const hn_row *row, const hn_output *output, scratch *s, hn_box *part) {
  *part = (hn_box){row->box_y + row->window_y, row->box_x + row->window_x, output->height, output->width};
  if (!is_scaled(row)) return HN_OK;
  int across = hn_plan_axis(&s->across, row->box_width, row->size_width, row->window_x, output->width, row->mirror != 0);
  int down = hn_plan_axis(&s->down, row->box_height, row->size_height, row->window_y, output->height, row->flip != 0);
  if (across || down) return HN_NO_MEMORY;
  *part = (hn_box){row->box_y + s->down.first, row->box_x + s->across.first, s->down.length, s->across.length};
  s->down.first = s->across.first = 0;
  return HN_OK;
}

/* A sink: the first pass of the resize, and what it took. */
typedef struct {
  hn_across_run run;
  int64_t ns;
} streamed;

static void take_rows(void *with, const hn_view *view, int64_t first, int64_t rows) {
  streamed *stream = with;
  int64_t began = now_ns(CLOCK_MONOTONIC);
  hn_feed_across(&stream->run, view, first, rows);
  stream->ns += now_ns(CLOCK_MONOTONIC) - began;
}

/* Decodes and does the first pass at once, a few rows at a time. */
static int make_streamed(const task *t, const hn_box *region, const hn_target *target, int64_t *decode_ns) {
  streamed stream = {.ns = 0};
  hn_sink sink = {take_rows, &stream};
  hn_view view;
  int64_t size[2] = {t->row->height, t->row->width}, cpu = now_ns(CLOCK_THREAD_CPUTIME_ID), wall = now_ns(CLOCK_MONOTONIC);
  if (hn_begin_across(&stream.run, t->isa, &t->s->across, &t->s->down, &t->s->between)) return HN_NO_MEMORY;
  int status = hn_decode_region(t->libjpeg, t->data, t->row->data_bytes, size, region, 1, &sink, &t->s->decoded, &view);
  cpu = now_ns(CLOCK_THREAD_CPUTIME_ID) - cpu;
  wall = now_ns(CLOCK_MONOTONIC) - wall;
  /* The thread's own clock costs too much to ask for a few rows: its time is split as the wall's. */
  *decode_ns = wall > stream.ns ? (int64_t)((double)cpu * (double)(wall - stream.ns) / (double)wall) : 0;
  if (!status) hn_end_across(&stream.run, target);
  return status;
}

/* Decodes all of the region, turns it upright, then resizes, or cuts where the size stays. */
static int make_whole(const task *t, const hn_box *part, const hn_box *region, const hn_target *target, int64_t *decode_ns) {
  const hn_row *row = t->row;
  hn_view view;
  int64_t size[2] = {row->height, row->width}, began = now_ns(CLOCK_THREAD_CPUTIME_ID);
  int status = hn_decode_region(t->libjpeg, t->data, row->data_bytes, size, region, 1, NULL, &t->s->decoded, &view);
  *decode_ns = now_ns(CLOCK_THREAD_CPUTIME_ID) - began;
  if (status || (status = make_upright(row, part, &view, &t->s->upright))) return status;
  if (is_scaled(row)) return hn_run_resize(t->isa, &view, &t->s->across, &t->s->down, target, &t->s->between);
  copy_turned(&view, 0, row->mirror != 0, row->flip != 0, target->pixels, target->stride, part->height, part->width);
  return HN_OK;
}

/* One row; *decode_ns is the thread's time in decoding it. */
static int make_row(const task *t, const hn_output *output, int64_t *decode_ns) {
  const hn_row *row = t->row;
  hn_box part;
  if (!sound(row, output)) return HN_BAD_ARGUMENT;
  if (plan(row, output, t->s, &part)) return HN_NO_MEMORY;
  hn_box region = stored_box(row, part);
  size_t stride = 3 * (size_t)output->width;
  hn_target target = {output->pixels + (size_t)row->place * (size_t)output->height * stride, stride, stride};
  if (is_scaled(row) && row->orientation == 1 && !hn_is_down_first(&t->s->across, &t->s->down)) {
    return make_streamed(t, &region, &target, decode_ns);
  }
  return make_whole(t, &part, &region, &target, decode_ns);
}

void hn_rows(const hn_libjpeg *libjpeg, int isa, const uint8_t *const *data, const hn_row *rows, int64_t count,
             const hn_output *output, int32_t *status, int64_t *cpu_ns) {
  scratch s;
  memset(&s, 0, sizeof s);
  int64_t began = now_ns(CLOCK_THREAD_CPUTIME_ID);
  for (int64_t i = 0; i < count; i++) {
    int64_t decode_ns = 0;
    task t = {libjpeg, isa, data[i], rows + i, &s};
    status[i] = make_row(&t, output, &decode_ns);
    int64_t ended = now_ns(CLOCK_THREAD_CPUTIME_ID);
    cpu_ns[0] += decode_ns;
    cpu_ns[1] += ended - began - decode_ns;
    began = ended;
  }
  hn_release(&s.decoded);
  hn_release(&s.upright);
  hn_release(&s.between);
  hn_release(&s.across.memory);
  hn_release(&s.down.memory);
}

int hn_decode(const hn_libjpeg *libjpeg, const uint8_t *data, int64_t data_bytes, const int64_t size[2], const int64_t region[4],
              int strict, uint8_t *pixels) {
  if (data_bytes < 1 || !within(region[0], region[2], size[0]) || !within(region[1], region[3], size[1])) return HN_BAD_ARGUMENT;
  hn_box box = {region[0], region[1], region[2], region[3]};
  hn_buffer buffer = {0};
  hn_view view;
  int status = hn_decode_region(libjpeg, data, data_bytes, size, &box, strict, NULL, &buffer, &view);
  if (!status) copy_turned(&view, 0, 0, 0, pixels, 3 * (size_t)box.width, box.height, box.width);
  hn_release(&buffer);
  return status;
}
