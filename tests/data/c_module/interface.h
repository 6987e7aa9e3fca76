// The interface of C modules, version 0.1, declared independently of any runtime's headers.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uintptr_t status_t;
typedef struct { const char *data; size_t size; } string_t;
typedef struct { string_t key, value; } pair_t;
typedef struct { uint8_t *data; size_t size; } span_t;
typedef struct { void *self; status_t (*control)(void *, int, const void *, void **); } allocator_t;
typedef struct { struct module_t *module; uint16_t linkage, ordinal; } function_t;
typedef struct { function_t function; span_t arguments, results; } call_t;
typedef struct { uint32_t version; size_t attributes, imports, exports, internals; } signature_t;
typedef struct { string_t name; uint32_t minimum_version, flags; } dependency_t;
typedef struct { void (*destroy)(void *); string_t name; uintptr_t counter; } descriptor_t;
typedef struct { void *pointer; uintptr_t type; } __attribute__((packed, aligned(4))) ref_t;

typedef struct module_t {
  void *self;
  int32_t count;
  void (*destroy)(void *);
  string_t (*name)(void *);
  signature_t (*signature)(void *);
  status_t (*enumerate_dependencies)(void *, status_t (*)(void *, const dependency_t *), void *);
  status_t (*get_module_attr)(void *, size_t, pair_t *);
  status_t (*lookup_function)(void *, int, string_t, const string_t *, function_t *);
  status_t (*get_function)(void *, int, size_t, function_t *, string_t *, string_t *);
  status_t (*get_function_attr)(void *, int, size_t, size_t, pair_t *);
  status_t (*resolve_source_location)(void *, function_t, int64_t, void *);
  status_t (*alloc_state)(void *, allocator_t, void **);
  void (*free_state)(void *, void *);
  status_t (*fork_state)(void *, void *, allocator_t, void **);
  status_t (*resolve_import)(void *, void *, size_t, const function_t *, const string_t *);
  status_t (*notify)(void *, void *, int);
  status_t (*begin_call)(void *, struct stack_t_ *, call_t);
  status_t (*resume_call)(void *, struct stack_t_ *, span_t);
} module_t;

// Private to runtimes; code that libraries are linked with relies on it.
typedef struct frame_t {
  size_t size;
  struct frame_t *parent;
  size_t data_size;
  void (*cleanup)(void *);
  int32_t type;
  function_t function;
  void *state;
  int64_t position;
  int32_t depth;
} frame_t;
typedef struct stack_t_ {
  frame_t *top;
  size_t capacity, size;
  uint8_t *storage;
  uint32_t flags;
  _Bool owns_storage;
  void *resolver;
  status_t (*resolve_state)(void *, module_t *, void **);
  allocator_t allocator;
} vm_stack_t;
typedef struct { const descriptor_t *descriptor; uint32_t count; } registered_t;
typedef struct {
  int32_t count;
  allocator_t allocator;
  int32_t mutex;
  uint16_t capacity, type_count;
  registered_t types[];
} instance_t;
typedef struct {
  void *first, *last;
  const char *file;
  uint32_t line;
  string_t message;
} storage_t;

#define TEXT(s) ((string_t){s, sizeof(s) - 1})
#define EXPORT __attribute__((visibility("default")))

static inline status_t failure(int code, const char *message) {
  storage_t *storage = aligned_alloc(32, 64);
  memset(storage, 0, 64);
  storage->message = (string_t){message, strlen(message)};
  return (uintptr_t)storage | code;
}
static inline int equals(string_t a, const char *b) { return a.size == strlen(b) && !memcmp(a.data, b, a.size); }
