// An executable plugin with the functions that data/executables/src/imp.mlir imports. Interface 0.1, as
// jitree/loaders/plugins.py describes it; needs no header and no library.

#include <stddef.h>
#include <stdint.h>

typedef uintptr_t status_t;
enum { OK = 0, INVALID_ARGUMENT = 3, NOT_FOUND = 5 };

struct allocator {
  void *self;
  status_t (*ctl)(void *self, int32_t command, const void *params, void **inout);
};
struct header {
  uint32_t version;
  const char *name, *description;
  uint32_t features, sanitizer;
  uint64_t reserved[8];
};
struct resolve_params {
  size_t count;
  const char *const *names;
  void **functions, **contexts;
};
struct state {
  struct allocator allocator;
  float factor;
};

#ifndef QUERY
#define QUERY iree_hal_executable_plugin_query
#endif
#ifndef PLUGIN_VERSION
#define PLUGIN_VERSION 1
#endif
#ifndef PLUGIN_SANITIZER
#define PLUGIN_SANITIZER 0
#endif
#ifndef LOAD_STATUS
#define LOAD_STATUS OK
#endif

int unload_count;  // for tests

// result @0, arguments @4 and @8, processor id @16, processor data @24
struct scale_params {
  float result, value;
  int64_t index;
  uint32_t processor_id;
  const uint64_t *processor_data;
};
struct other_params {
  float result, value;
};

static int32_t scale(void *params, void *context, void *reserved) {
  struct scale_params *p = params;
  p->result = p->value * ((struct state *)context)->factor + (float)p->index;
  return p->value < 0 ? 42 : 0;
}

static int32_t other(void *params, void *context, void *reserved) {
  struct other_params *p = params;
  p->result = p->value + 0.5f;
  return 0;
}

static status_t load(const struct allocator *allocator, size_t count, const void *pairs, void **self) {
  size_t size = sizeof(struct state);
  struct state *state = NULL;
  if (LOAD_STATUS != OK) return LOAD_STATUS;
  status_t status = allocator->ctl(allocator->self, 0, &size, (void **)&state);
  if (status != OK) return status;
  size *= 2;
  status = allocator->ctl(allocator->self, 2, &size, (void **)&state);
  if (status != OK) return status;
  state->allocator = *allocator;
  state->factor = 10;
  *self = state;
  return OK;
}

static void unload(void *self) {
  struct state *state = self;
  struct allocator allocator = state->allocator;
  ++unload_count;
  allocator.ctl(allocator.self, 3, NULL, (void **)&state);
}

static int equal(const char *a, const char *b) {
  while (*a && *a == *b) ++a, ++b;
  return *a == *b;
}

static status_t resolve(void *self, const struct resolve_params *params, uint32_t *resolution) {
  status_t status = OK;
  *resolution = 0;
  for (size_t i = 0; i < params->count; ++i) {
    const char *name = params->names[i];
    int optional = name[0] == '?';
    if (params->functions[i]) continue;
    if (equal(name + optional, "jt_scale")) {
      params->functions[i] = (void *)scale;
      params->contexts[i] = self;
    } else if (equal(name + optional, "jt_other")) {
      params->functions[i] = (void *)other;
    } else if (equal(name + optional, "jt_broken")) {
      return INVALID_ARGUMENT;
    } else if (optional) {
      *resolution |= 1;
    } else {
      status = NOT_FOUND;
    }
  }
  return status;
}

static const struct header header = {PLUGIN_VERSION, "scale", "for tests", 1, PLUGIN_SANITIZER, {0}};
static const struct {
  const struct header *header;
  status_t (*load)(const struct allocator *, size_t, const void *, void **);
  void (*unload)(void *);
  status_t (*resolve)(void *, const struct resolve_params *, uint32_t *);
} plugin = {&header, load, unload, resolve};

__attribute__((visibility("default"))) const void *QUERY(uint32_t max_version, void *reserved) {
  return max_version >= 1 ? &plugin : NULL;
}
