/* Decoding the part of a JPEG that a crop needs, bit for bit what decoding all of it would give.

   Rows and columns outside the region are entropy-decoded, which damage in them needs to be seen, but not transformed. Any warning of
   libjpeg is an error. What libjpeg reads is hostile: it is asked for the size first, and nothing is allocated unless that is what
   the header said. */
#include "headrace_native.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

/* The layout of libjpeg 6.2, which is what Pillow's wheels hold, whatever the headers here were configured for. */
#include <jconfig.h>
#undef JPEG_LIB_VERSION
#define JPEG_LIB_VERSION 62
#define JCONFIG_INCLUDED
#include <jpeglib.h>

/* A pixel at the region's edge takes chroma from its neighbours; two are more than any subsampling needs. */
#define MARGIN 2
/* Rows that a sink takes at a time: few, so that they are still in the nearest cache when it does. */
#define STRIP 8

typedef struct {
  struct jpeg_error_mgr base;
  jmp_buf escape;
  volatile int status;
} failing;

typedef struct {
  struct jpeg_error_mgr *(*std_error)(struct jpeg_error_mgr *);
  void (*create)(j_decompress_ptr, int, size_t);
  void (*destroy)(j_decompress_ptr);
  void (*mem_src)(j_decompress_ptr, const unsigned char *, unsigned long);
  int (*read_header)(j_decompress_ptr, boolean);
  boolean (*start)(j_decompress_ptr);
  void (*crop)(j_decompress_ptr, JDIMENSION *, JDIMENSION *);
  JDIMENSION (*skip)(j_decompress_ptr, JDIMENSION);
  JDIMENSION (*read)(j_decompress_ptr, JSAMPARRAY, JDIMENSION);
  boolean (*finish)(j_decompress_ptr);
} functions;

static functions functions_of(const hn_libjpeg *from) {
  functions f;
  /* ISO C has no cast from void * to a function; POSIX promises that the bytes are the same. */
  memcpy(&f.std_error, &from->std_error, sizeof(void *));
  memcpy(&f.create, &from->create_decompress, sizeof(void *));
  memcpy(&f.destroy, &from->destroy_decompress, sizeof(void *));
  memcpy(&f.mem_src, &from->mem_src, sizeof(void *));
  memcpy(&f.read_header, &from->read_header, sizeof(void *));
  memcpy(&f.start, &from->start_decompress, sizeof(void *));
  memcpy(&f.crop, &from->crop_scanline, sizeof(void *));
  memcpy(&f.skip, &from->skip_scanlines, sizeof(void *));
  memcpy(&f.read, &from->read_scanlines, sizeof(void *));
  memcpy(&f.finish, &from->finish_decompress, sizeof(void *));
  return f;
}

/* Whether the message begins so. By its text: the numbers of messages are not the same in all versions. */
static int says(j_common_ptr info, const char *beginning) {
  struct jpeg_error_mgr *error = info->err;
  if (error->msg_code <= 0 || error->msg_code > error->last_jpeg_message) return 0;
  const char *text = error->jpeg_message_table[error->msg_code];
  return text && !strncmp(text, beginning, strlen(beginning));
}

static void on_error(j_common_ptr info) {
  failing *fail = (failing *)(void *)info->err;
  fail->status = says(info, "Insufficient memory") ? HN_NO_MEMORY : HN_CORRUPT;
  longjmp(fail->escape, 1);
}

static void on_message(j_common_ptr info, int level) {
  /* An unusual JFIF version is no damage. */
  if (level < 0 && !says(info, "Warning: unknown JFIF revision number")) on_error(info);
}

static void on_output(j_common_ptr info) { (void)info; }

static void begin(const functions *f, struct jpeg_decompress_struct *info, failing *fail) {
  info->err = f->std_error(&fail->base);
  fail->base.error_exit = on_error;
  fail->base.emit_message = on_message;
  fail->base.output_message = on_output;
  fail->status = HN_CORRUPT;
}

/* Whether libjpeg smooths over blocks, as it does where the last scans of a progressive image are missing. It then looks at more
   neighbours than there are in a region. */
static int smooths(const struct jpeg_decompress_struct *info) {
  if (!info->progressive_mode || !info->coef_bits) return 0;
  for (int component = 0; component < info->num_components; component++) {
    for (int i = 0; i < DCTSIZE2; i++) {
      if (info->coef_bits[component][i] != 0) return 1;
    }
  }
  return 0;
}

/* Narrows the columns to the region and its margin, if that spares any. Returns how many columns are left of the region. */
static size_t crop_columns(const functions *f, struct jpeg_decompress_struct *info, const hn_box *region) {
  int64_t left = region->x - MARGIN, right = region->x + region->width + MARGIN;
  if (left < 0) left = 0;
  if (right > info->output_width) right = info->output_width;
  if (left == 0 && right == info->output_width) return (size_t)region->x;
  JDIMENSION x = (JDIMENSION)left, width = (JDIMENSION)(right - left);
  f->crop(info, &x, &width); /* moves x down to a whole block */
  return (size_t)(region->x - x);
}

/* Reads rows to `out`, each to the same place if stride is 0. */
static void read_rows(const functions *f, struct jpeg_decompress_struct *info, uint8_t *out, size_t stride, int64_t rows) {
  JDIMENSION end = info->output_scanline + (JDIMENSION)rows;
  while (info->output_scanline < end) {
    JSAMPROW lines[8];
    JDIMENSION most = end - info->output_scanline < 8 ? end - info->output_scanline : 8;
    for (JDIMENSION i = 0; i < most; i++) lines[i] = out + i * stride;
    out += f->read(info, lines, most) * stride;
  }
}

/* Where a region's pixels go: rows of `buffer`, `stride` bytes apart, `left` bytes before the region; `held` rows at a time. */
typedef struct {
  const hn_box *region;
  const hn_sink *sink;
  hn_buffer *buffer;
  size_t stride, left;
  int64_t held;
  int whole;
} destination;

/* Sizes the buffer: for the region, or for the few rows of it that a sink takes, and one more row for what nobody wants. */
static int make_room(destination *to) {
  to->held = to->sink && to->region->height > STRIP ? STRIP : to->region->height;
  return hn_reserve(to->buffer, (size_t)to->held + 1, to->stride);
}

/* Reads the image from its first row to the region's last, and, if `strict`, to its end. */
static void read_region(const functions *f, struct jpeg_decompress_struct *info, const destination *to, int strict) {
  uint8_t *rows = to->buffer->bytes, *unwanted = rows + (size_t)to->held * to->stride;
  hn_view view = {rows + to->left, to->stride, rows + to->buffer->size};
  if (to->whole) {
    read_rows(f, info, unwanted, 0, to->region->y);
  } else if (to->region->y > 0) {
    f->skip(info, (JDIMENSION)to->region->y);
  }
  for (int64_t first = 0; first < to->region->height; first += to->held) {
    int64_t count = to->region->height - first < to->held ? to->region->height - first : to->held;
    read_rows(f, info, rows, to->stride, count);
    if (to->sink) to->sink->take(to->sink->with, &view, first, count);
  }
  if (!strict) return;
  /* Entropy-decode what lies below, for the warnings. Skipping to the very end would not: the last row is read. */
  int64_t left = (int64_t)info->output_height - info->output_scanline;
  if (left > 1) f->skip(info, (JDIMENSION)(left - 1));
  if (left > 0) read_rows(f, info, unwanted, 0, 1);
  f->finish(info);
}

int hn_decode_region(const hn_libjpeg *libjpeg, const uint8_t *data, int64_t data_bytes, const int64_t size[2],
                     const hn_box *region, int strict, const hn_sink *sink, hn_buffer *buffer, hn_view *view) {
  const functions f = functions_of(libjpeg);
  struct jpeg_decompress_struct info;
  failing fail;
  begin(&f, &info, &fail);
  if (setjmp(fail.escape)) {
    f.destroy(&info);
    return fail.status;
  }
  memset((char *)&info + sizeof info.err, 0, sizeof info - sizeof info.err); /* so that destroy may come first */
  f.create(&info, JPEG_LIB_VERSION, sizeof info);
  f.mem_src(&info, data, (unsigned long)data_bytes);
  f.read_header(&info, TRUE);
  if (info.image_height != size[0] || info.image_width != size[1] || (info.num_components != 1 && info.num_components != 3)) {
    on_error((j_common_ptr)&info);
  }
  info.out_color_space = JCS_RGB;
  info.dct_method = JDCT_ISLOW;
  info.do_fancy_upsampling = TRUE;
  f.start(&info);
  destination to = {.region = region, .sink = sink, .buffer = buffer, .whole = smooths(&info)};
  to.left = 3 * (to.whole ? (size_t)region->x : crop_columns(&f, &info, region));
  to.stride = 3 * (size_t)info.output_width;
  if (make_room(&to)) {
    f.destroy(&info);
    return HN_NO_MEMORY;
  }
  read_region(&f, &info, &to, strict);
  f.destroy(&info);
  *view = (hn_view){buffer->bytes + to.left, to.stride, buffer->bytes + buffer->size};
  return HN_OK;
}

int hn_check_libjpeg(const hn_libjpeg *libjpeg) {
  const functions f = functions_of(libjpeg);
  struct jpeg_decompress_struct info;
  failing fail;
  begin(&f, &info, &fail);
  memset((char *)&info + sizeof info.err, 0, sizeof info - sizeof info.err);
  if (setjmp(fail.escape)) return HN_BAD_ARGUMENT;
  f.create(&info, JPEG_LIB_VERSION, sizeof info);
  f.destroy(&info);
  return HN_OK;
}
