/* Feeds the native core with damaged JPEGs and senseless numbers; built with sanitizers by tools/sanitize.sh, which makes the seeds.

   usage: fuzz LIBJPEG SECONDS SEED FILE...   Prints counts by outcome; the sanitizers end the process at the first fault. */
#include "../headrace_native.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_FILES = 4096, MOST_BYTES = 1 << 20, ROWS = 2 };

typedef struct {
  uint8_t *bytes;
  size_t size;
} file;

static uint64_t state;

static uint64_t draw(uint64_t below) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (state >> 11) % below;
}

static file read_file(const char *path) {
  file found = {malloc(MOST_BYTES), 0};
  FILE *in = fopen(path, "rb");
  if (!in || !found.bytes) {
    fprintf(stderr, "cannot read %s\n", path);
    exit(2);
  }
  found.size = fread(found.bytes, 1, MOST_BYTES, in);
  fclose(in);
  return found;
}

/* The sizes in the frame header, as the header parser in front of the core would have read them. */
static void frame_size(const uint8_t *data, size_t size, int64_t *height, int64_t *width) {
  for (size_t at = 2; at + 9 < size && data[at] == 0xff;) {
    if (data[at + 1] >= 0xc0 && data[at + 1] <= 0xc2) {
      *height = data[at + 5] << 8 | data[at + 6];
      *width = data[at + 7] << 8 | data[at + 8];
      return;
    }
    at += 2 + (size_t)(data[at + 2] << 8 | data[at + 3]);
  }
}

/* One of: bytes overwritten, a bit turned, a block copied over another, a cut, a piece removed, a segment's length changed. */
static void damage(uint8_t *data, size_t *size) {
  static const uint8_t telling[] = {0x00, 0xff, 0xd8, 0xd9, 0xda, 0xc4, 0xdb, 0xc0, 0xc2, 0xd0, 0xdd, 0x7f, 0x80, 0x01, 0x22, 0x44};
  if (*size < 32) return;
  size_t near = draw(3) ? *size : 700 < *size ? 700 : *size, at = draw(near), other = draw(*size), length = 1 + draw(40);
  if (at + length > *size) length = *size - at;
  if (other + length > *size) other = *size - length;
  switch (draw(6)) {
    case 0: for (size_t i = 0; i < length; i++) data[at + i] = (uint8_t)draw(256); break;
    case 1: data[at] ^= (uint8_t)(1u << draw(8)); break;
    case 2: memmove(data + at, data + other, length); break;
    case 3: if (!draw(8)) *size = at + 1; break;
    case 4: memmove(data + at, data + at + length, *size - at - length); *size -= length; break;
    default: data[at] = telling[draw(sizeof telling)];
  }
}

static int64_t below(int64_t most) { return most > 0 ? (int64_t)draw((uint64_t)most) : 0; }

/* A row whose numbers fit the image, or, one time in eight, don't. */
static hn_row make_row(const file *image, const hn_output *output, int64_t place) {
  hn_row row = {.data_bytes = (int64_t)image->size, .orientation = draw(2) ? 1 : 1 + below(8), .mirror = below(2), .flip = below(2),
                .place = place};
  frame_size(image->bytes, image->size, &row.height, &row.width);
  int64_t height = row.orientation >= 5 ? row.width : row.height, width = row.orientation >= 5 ? row.height : row.width;
  row.box_y = below(height);
  row.box_x = below(width);
  row.box_height = 1 + below(height - row.box_y);
  row.box_width = 1 + below(width - row.box_x);
  row.size_height = output->height + (draw(2) ? 0 : below(300));
  row.size_width = output->width + (draw(2) ? 0 : below(300));
  if (!draw(6)) row.size_height = row.box_height, row.size_width = row.box_width;
  row.window_y = below(row.size_height - output->height + 1);
  row.window_x = below(row.size_width - output->width + 1);
  if (!draw(8)) {
    static const int64_t odd[] = {-1, 0, 1, INT64_MIN, INT64_MAX, 65535, 65536, (int64_t)1 << 31, (int64_t)1 << 40, 100};
    int64_t *numbers = (int64_t *)(void *)&row;
    numbers[1 + draw(sizeof row / sizeof *numbers - 1)] = odd[draw(sizeof odd / sizeof *odd)];
  }
  return row;
}

/* Exact allocations, so that a byte too far is seen. */
static void one_batch(const hn_libjpeg *libjpeg, const file *files, size_t count, int64_t *outcomes) {
  hn_output output = {NULL, ROWS, 1 + below(64), 1 + below(64)};
  uint8_t *images[ROWS];
  hn_row rows[ROWS];
  int32_t status[ROWS];
  int64_t cpu_ns[2] = {0, 0};
  size_t bytes = (size_t)(ROWS * output.height * output.width * 3);
  output.pixels = malloc(bytes);
  for (int i = 0; i < ROWS; i++) {
    const file *from = files + draw(count);
    file image = {malloc(from->size), from->size};
    if (!image.bytes || !output.pixels) exit(2);
    memcpy(image.bytes, from->bytes, from->size);
    for (uint64_t n = draw(5); n > 0; n--) damage(image.bytes, &image.size);
    images[i] = malloc(image.size);
    if (!images[i]) exit(2);
    memcpy(images[i], image.bytes, image.size);
    free(image.bytes);
    image.bytes = images[i];
    rows[i] = make_row(&image, &output, i);
    /* The engine refuses by the header what is above the job's limit. */
    if (rows[i].width > 0 && rows[i].width < 65536 && rows[i].height > 4000000 / rows[i].width) rows[i].width = 0;
  }
  hn_rows(libjpeg, (int)draw(3), (const uint8_t *const *)images, rows, ROWS, &output, status, cpu_ns);
  for (int i = 0; i < ROWS; i++) {
    outcomes[status[i]]++;
    free(images[i]);
  }
  free(output.pixels);
}

static void one_resize(void) {
  int64_t height = 1 + below(draw(4) ? 40 : 3000), width = 1 + below(draw(4) ? 40 : 3000), stride = 3 * width + below(9);
  int64_t out_height = 1 + below(90), out_width = 1 + below(90);
  size_t bytes = (size_t)((height - 1) * stride + 3 * width), out_bytes = (size_t)(3 * out_height * out_width);
  uint8_t *pixels = malloc(bytes), *out = malloc(out_bytes);
  if (!pixels || !out) exit(2);
  memset(pixels, (int)draw(256), bytes);
  hn_resize((int)draw(3), pixels, height, width, stride, out, out_height, out_width);
  for (size_t i = 0; i < out_bytes; i++) {
    if (out[i] != pixels[0]) {
      fprintf(stderr, "a plain image is not plain after a resize\n");
      abort();
    }
  }
  free(pixels);
  free(out);
}

int main(int argc, char **argv) {
  static const char *const names[] = {"jpeg_std_error", "jpeg_CreateDecompress", "jpeg_destroy_decompress", "jpeg_mem_src",
                                      "jpeg_read_header", "jpeg_start_decompress", "jpeg_crop_scanline", "jpeg_skip_scanlines",
                                      "jpeg_read_scanlines", "jpeg_finish_decompress"};
  static file files[MOST_FILES];
  if (argc < 5 || argc - 4 > MOST_FILES) return 2;
  void *library = dlopen(argv[1], RTLD_NOW), *functions[10];
  if (!library) return fprintf(stderr, "%s\n", dlerror()), 2;
  for (int i = 0; i < 10; i++) functions[i] = dlsym(library, names[i]);
  hn_libjpeg libjpeg;
  memcpy(&libjpeg, functions, sizeof libjpeg);
  if (hn_check_libjpeg(&libjpeg) != HN_OK) return fprintf(stderr, "not a libjpeg-turbo of the 6.2 interface: %s\n", argv[1]), 2;
  state = strtoull(argv[3], NULL, 10) * 2654435761u + 88172645463325252u;
  size_t count = (size_t)(argc - 4);
  for (size_t i = 0; i < count; i++) files[i] = read_file(argv[i + 4]);
  int64_t outcomes[4] = {0}, resizes = 0;
  for (time_t end = time(NULL) + atoi(argv[2]); time(NULL) < end;) {
    for (int i = 0; i < 20; i++) one_batch(&libjpeg, files, count, outcomes);
    one_resize();
    resizes++;
  }
  printf("seed %s: %lld images decoded, %lld refused as corrupt, %lld rows refused, %lld without memory, %lld resizes\n", argv[3],
         (long long)outcomes[HN_OK], (long long)outcomes[HN_CORRUPT], (long long)outcomes[HN_BAD_ARGUMENT],
         (long long)outcomes[HN_NO_MEMORY], (long long)resizes);
  for (size_t i = 0; i < count; i++) free(files[i].bytes);
  return 0;
}
