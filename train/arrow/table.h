#ifndef TROUPE_TRAIN_ARROW_TABLE_H
#define TROUPE_TRAIN_ARROW_TABLE_H
/* What libtroupe_arrow.so offers: files of Apache Arrow's formats as streams of its C data
 * interface (https://arrow.apache.org/docs/format/CDataInterface.html), whose structures these are.
 * Nothing of Arrow's C++ goes through here. C, since the two sides may be built by different
 * compilers. */

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef ARROW_C_DATA_INTERFACE
#define ARROW_C_DATA_INTERFACE

struct ArrowSchema {
  const char* format;
  const char* name;
  const char* metadata;
  int64_t flags;
  int64_t n_children;
  struct ArrowSchema** children;
  struct ArrowSchema* dictionary;
  void (*release)(struct ArrowSchema*);
  void* private_data;
};

struct ArrowArray {
  int64_t length;
  int64_t null_count;
  int64_t offset;
  int64_t n_buffers;
  int64_t n_children;
  const void** buffers;
  struct ArrowArray** children;
  struct ArrowArray* dictionary;
  void (*release)(struct ArrowArray*);
  void* private_data;
};

#endif

#ifndef ARROW_C_STREAM_INTERFACE
#define ARROW_C_STREAM_INTERFACE

struct ArrowArrayStream {
  int (*get_schema)(struct ArrowArrayStream*, struct ArrowSchema* out);
  int (*get_next)(struct ArrowArrayStream*, struct ArrowArray* out);
  const char* (*get_last_error)(struct ArrowArrayStream*);
  void (*release)(struct ArrowArrayStream*);
  void* private_data;
};

#endif

enum { TROUPE_ARROW_TABLE_VERSION = 1 };

/* What the bytes of a file are. */
enum TroupeArrowKind {
  TROUPE_ARROW_PARQUET = 0,
  TROUPE_ARROW_IPC = 1 /* a stream or a file */
};

struct TroupeArrowTable {
  uint32_t version;
  uint32_t bytes; /* sizeof of this */
  /* Opens `size` bytes, which stay where they are until the stream is released. Batches are valid:
   * their offsets lie within their buffers, their texts are UTF-8. 0, or not: then `reason` says
   * why. */
  int (*open)(const void* data, uint64_t size, int kind, struct ArrowArrayStream* out, char* reason,
              uint64_t reason_bytes);
};

/* The one symbol: null where the version is another. */
typedef const struct TroupeArrowTable* (*TroupeArrowTableFunction)(uint32_t version);
#define TROUPE_ARROW_TABLE_SYMBOL "troupe_arrow_table"

#ifdef __cplusplus
}
#endif

#endif
