// A hand-written module: scalars, spans, state, parameters, failures, an own type, imports. It keeps no frames.
#include "interface.h"

typedef struct { module_t module; allocator_t allocator; int32_t start; int uses_hal; } counter_module_t;
typedef struct { int32_t value; function_t callback; int signals; } state_t;
typedef struct { int32_t marker, count; allocator_t allocator; int32_t value; } box_t;

static int32_t live_boxes, live_modules, live_states;

static void destroy_box(void *pointer) {
  box_t *box = pointer;
  --live_boxes;
  box->allocator.control(box->allocator.self, 3, NULL, &pointer);
}
static descriptor_t box_type = {destroy_box, {"counter.box", 11}, 1};

static const char *EXPORTS[][2] = {
    {"add", "0iIfF_FfIi"}, {"next", "0v_i"},      {"fail", "0i_v"},  {"fail.bare", "0i_v"},
    {"box", "0i_r"},       {"unbox", "0r_i"},     {"same", "0r_r"},  {"sum", "0iCiID_I"},
    {"call", "0i_i"},      {"take", "0r_v"},      {"live", "0v_i"},  {"signals", "0v_i"},
    {"fill", "0ri_v"},     {"pick", "0iCrD_r"},   {"wait", "0v_i"},
};
enum { COUNT = sizeof(EXPORTS) / sizeof(EXPORTS[0]) };

static string_t text(const char *s) { return (string_t){s, strlen(s)}; }
static void destroy(void *self) {
  --live_modules;
  counter_module_t *module = self;
  module->allocator.control(module->allocator.self, 3, NULL, &self);
}
static string_t name(void *self) { return TEXT("counter"); }
static signature_t signature(void *self) { return (signature_t){3, 1, 1, COUNT, 0}; }
static status_t dependencies(void *self, status_t (*note)(void *, const dependency_t *), void *data) {
  if (!((counter_module_t *)self)->uses_hal) return 0;
  dependency_t dependency = {TEXT("hal"), 0, 1};
  return note(data, &dependency);
}
static status_t get_attr(void *self, size_t index, pair_t *out) {
  *out = (pair_t){TEXT("author"), TEXT("nobody")};
  return index ? 11 : 0;
}
static status_t get_function(void *self, int linkage, size_t ordinal, function_t *function, string_t *out_name,
                             string_t *cconv) {
  if (linkage == 1) {
    if (ordinal) return 11;
    if (function) *function = (function_t){self, 3, 0};
    if (out_name) *out_name = TEXT("host.callback");
    if (cconv) *cconv = TEXT("0i_i");
    return 0;
  }
  if (linkage != 2 || ordinal >= COUNT) return 11;
  if (function) *function = (function_t){self, 2, ordinal};
  if (out_name) *out_name = text(EXPORTS[ordinal][0]);
  if (cconv) *cconv = text(EXPORTS[ordinal][1]);
  return 0;
}
static status_t get_function_attr(void *self, int linkage, size_t ordinal, size_t index, pair_t *out) {
  if (ordinal || index) return 11;
  *out = (pair_t){TEXT("note"), TEXT("adds four numbers")};
  return 0;
}
static status_t alloc_state(void *self, allocator_t allocator, void **out) {
  state_t *state = calloc(1, sizeof(*state));
  state->value = ((counter_module_t *)self)->start;
  ++live_states;
  *out = state;
  return 0;
}
static void free_state(void *self, void *state) { --live_states; free(state); }
static status_t fork_state(void *self, void *parent, allocator_t allocator, void **out) {
  alloc_state(self, allocator, out);
  *(state_t *)*out = *(state_t *)parent;
  return 0;
}
static status_t resolve_import(void *self, void *state, size_t ordinal, const function_t *function,
                               const string_t *cconv) {
  if (!equals(*cconv, "0i_i") || !equals(function->module->name(function->module->self), "host")) return 9;
  if (function->module->signature(function->module->self).version != 7) return 9;
  ((state_t *)state)->callback = *function;
  return 0;
}
static status_t notify(void *self, void *state, int signal) {
  ((state_t *)state)->signals |= 1 << signal;
  return 0;
}

#define LOAD(type, at) ({ type v; memcpy(&v, call.arguments.data + (at), sizeof v); v; })
#define STORE(type, at, value) ({ type v = (value); memcpy(call.results.data + (at), &v, sizeof v); })

static status_t begin_call(void *self, vm_stack_t *stack, call_t call) {
  void *pointer = NULL;
  state_t *state;
  status_t status = stack->resolve_state(stack->resolver, call.function.module, &pointer);
  if (status) return status;
  state = pointer;
  counter_module_t *module = self;
  switch (call.function.ordinal) {
    case 0:
      STORE(double, 0, LOAD(double, 16) + 1);
      STORE(float, 8, LOAD(float, 12) + 1);
      STORE(int64_t, 12, LOAD(int64_t, 4) + 1);
      STORE(int32_t, 20, LOAD(int32_t, 0) + 1);
      return 0;
    case 1: STORE(int32_t, 0, state->value++); return 0;
    case 2: return failure(LOAD(int32_t, 0), "the counter is broken");
    case 3: return LOAD(int32_t, 0);
    case 4: {
      size_t size = sizeof(box_t);
      status = module->allocator.control(module->allocator.self, 1, &size, &pointer);
      if (status) return status;
      *(box_t *)pointer = (box_t){0x1234, 1, module->allocator, LOAD(int32_t, 0)};
      ++live_boxes;
      STORE(ref_t, 0, ((ref_t){pointer, (uintptr_t)&box_type | box_type.counter}));
      return 0;
    }
    case 5: {
      ref_t ref = LOAD(ref_t, 0);
      if ((ref.type & ~(uintptr_t)7) != (uintptr_t)&box_type) return failure(3, "that is no box");
      STORE(int32_t, 0, ((box_t *)ref.pointer)->value);
      return 0;
    }
    case 6:  // moved from the arguments to the results
      STORE(ref_t, 0, LOAD(ref_t, 0));
      memset(call.arguments.data, 0, sizeof(ref_t));
      return 0;
    case 7: {
      int64_t sum = LOAD(int32_t, 0);
      int32_t count = LOAD(int32_t, 4);
      for (int32_t i = 0; i < count; ++i) sum += LOAD(int32_t, 8 + 12 * i) * LOAD(int64_t, 12 + 12 * i);
      STORE(int64_t, 0, sum);
      return 0;
    }
    case 8: {
      if (!state->callback.module) return failure(14, "nobody to call");
      call_t inner = {state->callback, call.arguments, call.results};
      return state->callback.module->begin_call(state->callback.module->self, stack, inner);
    }
    case 9: return 0;
    case 10: STORE(int32_t, 0, live_boxes + 100 * live_modules + 10000 * live_states); return 0;
    case 11: STORE(int32_t, 0, state->signals); return 0;
    case 12: {  // vm.buffer
      ref_t ref = LOAD(ref_t, 0);
      struct { int32_t count; uint32_t access; span_t data; } *buffer = ref.pointer;
      if (!(buffer->access & 1)) return failure(7, "the buffer is read-only");
      memset(buffer->data.data, LOAD(int32_t, 16), buffer->data.size);
      return 0;
    }
    case 13: {
      int32_t index = LOAD(int32_t, 0);
      STORE(ref_t, 0, LOAD(ref_t, 8 + 16 * index));
      memset(call.arguments.data + 8 + 16 * index, 0, sizeof(ref_t));
      return 0;
    }
    case 14: return 17;
  }
  return 12;
}
static status_t resume_call(void *self, vm_stack_t *stack, span_t results) {
  int32_t value = 55;
  memcpy(results.data, &value, 4);
  return 0;
}

EXPORT status_t iree_vm_dynamic_module_create(uint32_t version, instance_t *instance, size_t count,
                                              const pair_t *parameters, allocator_t allocator, module_t **out) {
  *out = NULL;
  if (version != 1) return failure(12, "unsupported version");
  size_t size = sizeof(counter_module_t);
  void *pointer = NULL;
  status_t status = allocator.control(allocator.self, 1, &size, &pointer);
  if (status) return status;
  counter_module_t *module = pointer;
  module->allocator = allocator;
  for (size_t i = 0; i < count; ++i) {
    if (equals(parameters[i].key, "start")) module->start = atoi(parameters[i].value.data);
    else if (equals(parameters[i].key, "hal")) module->uses_hal = 1;
    else { free(module); return failure(3, "unknown parameter"); }
  }
  module->module = (module_t){module, 1, destroy, name, signature, dependencies, get_attr, NULL, get_function,
                              get_function_attr, NULL, alloc_state, free_state, fork_state, resolve_import, notify,
                              begin_call, resume_call};
  ++live_modules;
  *out = &module->module;
  return 0;
}
EXPORT status_t create_none(uint32_t version, instance_t *instance, size_t count, const pair_t *parameters,
                            allocator_t allocator, module_t **out) {
  return 0;
}
EXPORT status_t create_nonsense(uint32_t version, instance_t *instance, size_t count, const pair_t *parameters,
                                allocator_t allocator, module_t **out) {
  static uintptr_t nonsense[18] = {1, 2, 3, 4, 5};
  *out = (module_t *)nonsense;
  return 0;
}
EXPORT status_t create_failing(uint32_t version, instance_t *instance, size_t count, const pair_t *parameters,
                               allocator_t allocator, module_t **out) {
  return 7;
}
