/* The native core of the `cpu` engine: JPEG region decode, Pillow's antialiased resize, flips, into a slot.

   A plain C interface, called from Python by ctypes (services/headrace/worker/engines/native.py): no Python header is needed, one
   build serves every Python. All arithmetic on pixels is on integers, so every instruction set gives the same bits. No state is
   kept between calls: any thread may call anything. */
#ifndef HEADRACE_NATIVE_H
#define HEADRACE_NATIVE_H

#include <stddef.h>
#include <stdint.h>

/* Raise with any change of what is declared here; native.py refuses another one. */
#define HN_ABI 1

#define HN_EXPORT __attribute__((visibility("default")))

enum { HN_OK = 0, HN_CORRUPT = 1, HN_NO_MEMORY = 2, HN_BAD_ARGUMENT = 3 };

/* Instruction sets. Each includes those before it. */
enum { HN_SCALAR = 0, HN_SSE41 = 1, HN_AVX2 = 2 };

/* Functions of a libjpeg-turbo with the libjpeg 6.2 ABI. native.py takes them from the library that Pillow is linked with, so that
   one libjpeg decodes all JPEGs of a process and its version is known. */
typedef struct {
  void *std_error, *create_decompress, *destroy_decompress, *mem_src, *read_header, *start_decompress;
  void *crop_scanline, *skip_scanlines, *read_scanlines, *finish_decompress;
} hn_libjpeg;

/* One image's work. Sizes and boxes are those of the upright image, as the operations see it: `box` is cut, scaled to
   size_height x size_width, and of that the window at (window_y, window_x), of the batch's output size, is mirrored and written. */
typedef struct {
  int64_t data_bytes;
  int64_t width, height;      /* as stored, by the header; another one in the data is damage */
  int64_t orientation;        /* EXIF, 1 to 8 */
  int64_t box_y, box_x, box_height, box_width;
  int64_t size_height, size_width;
  int64_t window_y, window_x;
  int64_t mirror, flip;       /* left and right; top and bottom; after the resize */
  int64_t place;              /* row of the output */
} hn_row;

typedef struct {
  uint8_t *pixels;            /* uint8[rows, height, width, 3] */
  int64_t rows, height, width;
} hn_output;

HN_EXPORT int hn_abi(void);
HN_EXPORT int hn_best_isa(void);

/* Whether the libjpeg can be used by this build: HN_OK or HN_BAD_ARGUMENT. */
HN_EXPORT int hn_check_libjpeg(const hn_libjpeg *libjpeg);

/* Makes `count` rows. status: one of the codes above for each; only rows with HN_OK hold pixels. cpu_ns[2]: the calling thread's
   CPU time in decoding and in everything after it. */
HN_EXPORT void hn_rows(const hn_libjpeg *libjpeg, int isa, const uint8_t *const *data, const hn_row *rows, int64_t count,
                       const hn_output *output, int32_t *status, int64_t *cpu_ns);

/* Decodes the region (y, x, height, width) of the stored image into `pixels`, uint8[height, width, 3]; for tests and benchmarks.
   strict: also decode what lies below the region, to see damage there. */
HN_EXPORT int hn_decode(const hn_libjpeg *libjpeg, const uint8_t *data, int64_t data_bytes, const int64_t size[2],
                        const int64_t region[4], int strict, uint8_t *pixels);

/* Scales uint8[height, width, 3], rows `stride` bytes apart, to uint8[out_height, out_width, 3], contiguous. */
HN_EXPORT int hn_resize(int isa, const uint8_t *pixels, int64_t height, int64_t width, int64_t stride, uint8_t *out,
                        int64_t out_height, int64_t out_width);

/* ---- within the library ---- */

#define HN_MAX_SIDE ((int64_t)1 << 30)
#define HN_MAX_BYTES ((size_t)1 << 40)
/* Bytes that a vector load may read past the pixels it is for. */
#define HN_SLACK 64

/* A buffer that is kept from row to row of a call and grows. */
typedef struct {
  uint8_t *bytes;
  size_t size;
} hn_buffer;

/* Makes room for at least count * item bytes; their contents are lost. Returns HN_OK or HN_NO_MEMORY. */
int hn_reserve(hn_buffer *buffer, size_t count, size_t item);
void hn_release(hn_buffer *buffer);

/* Pixels of which `box` is a part: rows are `stride` bytes apart; `end` is the first byte that must not be read. */
typedef struct {
  const uint8_t *first;
  size_t stride;
  const uint8_t *end;
} hn_view;

/* One axis of a resize. For each of `count` outputs, `pairs` pairs of neighbouring inputs from start[i] on, each with two weights
   of 22 bits, split in the upper 11 and the lower 11 so that 16-bit multiply-add makes exact sums: 2^11 * upper + lower. */
typedef struct {
  int32_t upper, lower;       /* two 16-bit halves each: the first input's in the low one */
} hn_weights;

typedef struct {
  int64_t in, out;            /* that many pixels become that many */
  int64_t count, pairs;
  int64_t first, length;      /* the inputs that are used: [first, first + length); start[] counts from first */
  int32_t *start;             /* [count] */
  hn_weights *weights;        /* [count][pairs] */
  const uint8_t **rows;       /* room for 2 * pairs pointers, for who runs the axis */
  hn_buffer memory;
} hn_axis;

/* Weights of outputs [window, window + count) where `in` pixels become `out`; reversed if `mirror`. */
int hn_plan_axis(hn_axis *axis, int64_t in, int64_t out, int64_t window, int64_t count, int mirror);

typedef struct {
  uint8_t *pixels;
  size_t width_bytes, stride;
} hn_target;

/* Runs both passes. `between` holds the rows in between. */
int hn_run_resize(int isa, const hn_view *view, const hn_axis *across, const hn_axis *down, const hn_target *target,
                  hn_buffer *between);

/* Whether rows are summed before columns. Pillow's rule, from 13.0 on: where the image becomes much lower. */
int hn_is_down_first(const hn_axis *across, const hn_axis *down);

/* The passes where columns come first, as the rows of pixels come in: begin, feed all of down->length rows, end. */
typedef struct {
  int isa;
  const hn_axis *across, *down;
  uint8_t *rows;              /* [down->length], `stride` bytes apart: what the first pass made */
  size_t stride;
  uint8_t *tail;
} hn_across_run;

int hn_begin_across(hn_across_run *run, int isa, const hn_axis *across, const hn_axis *down, hn_buffer *between);
void hn_feed_across(hn_across_run *run, const hn_view *view, int64_t first, int64_t rows);
void hn_end_across(const hn_across_run *run, const hn_target *target);

typedef struct {
  int64_t y, x, height, width;
} hn_box;

/* What is done with rows [first, first + rows) of a region as they are decoded. */
typedef struct {
  void (*take)(void *with, const hn_view *view, int64_t first, int64_t rows);
  void *with;
} hn_sink;

/* Decodes the region of the stored image. Without a sink, into `buffer`: *view is the region in it. With one, `buffer` holds a few
   rows at a time. */
int hn_decode_region(const hn_libjpeg *libjpeg, const uint8_t *data, int64_t data_bytes, const int64_t size[2],
                     const hn_box *region, int strict, const hn_sink *sink, hn_buffer *buffer, hn_view *view);

/* Two rows at a time, from pixels to output pixels; it may read and write HN_SLACK bytes beyond each. And one output row of `bytes`,
   from the 2 * pairs rows that it sums; nothing beyond them is touched. */
typedef void hn_across(const uint8_t *const in[2], const hn_axis *axis, uint8_t *const out[2]);
typedef void hn_down(const uint8_t *const *rows_of, const hn_weights *weights, int64_t pairs, uint8_t *out, size_t bytes);

/* The row to read where weights were padded beyond the last one: theirs are 0. */
static inline size_t hn_clamp(int64_t row, int64_t rows) { return (size_t)(row < rows ? row : rows - 1); }

hn_across hn_across_scalar;
hn_down hn_down_scalar;
#if defined(__x86_64__)
hn_across hn_across_sse41, hn_across_avx2;
hn_down hn_down_sse41, hn_down_avx2;
#endif

#define HN_PRECISION 22
#define HN_LOWER_BITS 11

#endif
