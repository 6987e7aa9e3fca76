// A module that registers a type with the instance and keeps its frames on the VM stack, as code does that is linked
// with the usual helper. Parameter `layout=other` makes it leave the stack in disorder.
#include "interface.h"

typedef struct { module_t module; module_t *user; instance_t *instance; allocator_t allocator; int disorder; } framed_t;
typedef struct { int32_t calls; } state_t;
typedef struct { int32_t count; int32_t number; } token_t;

static int32_t cleanups, live_tokens;
static void destroy_token(void *pointer) { --live_tokens; free(pointer); }
static descriptor_t token_type = {destroy_token, {"framed.token", 12}, 0};
static uintptr_t token_registration, buffer_registration;

static const char *EXPORTS[][2] = {
    {"calls", "0v_i"}, {"cleanups", "0v_i"}, {"deep", "0i_i"}, {"fail", "0i_v"},
    {"number", "0r_i"}, {"token", "0i_r"}, {"tokens", "0v_i"},
};
enum { COUNT = sizeof(EXPORTS) / sizeof(EXPORTS[0]) };

static void lock(int32_t *mutex) { while (!__sync_bool_compare_and_swap(mutex, 0, 1)) {} }
static uintptr_t find_type(instance_t *instance, const char *name) {
  uintptr_t found = 0;
  lock(&instance->mutex);
  for (int i = 0; i < instance->type_count; ++i) {
    const descriptor_t *descriptor = instance->types[i].descriptor;
    if (equals(descriptor->name, name)) found = (uintptr_t)descriptor | (descriptor->counter & 7);
  }
  __sync_lock_release(&instance->mutex);
  return found;
}
static status_t register_type(instance_t *instance, const descriptor_t *descriptor, uintptr_t *out) {
  *out = (uintptr_t)descriptor | descriptor->counter;
  lock(&instance->mutex);
  int i = 0;
  while (i < instance->type_count && instance->types[i].descriptor != descriptor) ++i;
  status_t status = 0;
  if (i < instance->type_count) ++instance->types[i].count;
  else if (i == instance->capacity) status = failure(8, "too many types");
  else { instance->types[i] = (registered_t){descriptor, 1}; ++instance->type_count; }
  __sync_lock_release(&instance->mutex);
  return status;
}
static void unregister_type(instance_t *instance, const descriptor_t *descriptor) {
  lock(&instance->mutex);
  for (int i = 0; i < instance->type_count; ++i) {
    if (instance->types[i].descriptor != descriptor || --instance->types[i].count) continue;
    memmove(&instance->types[i], &instance->types[i + 1], (instance->type_count - i - 1) * sizeof(registered_t));
    instance->types[--instance->type_count] = (registered_t){0};
    break;
  }
  __sync_lock_release(&instance->mutex);
}

static status_t grow(vm_stack_t *stack, size_t needed) {
  size_t capacity = stack->capacity;
  while (capacity < needed) capacity *= 2;
  if (capacity > 1 << 20) return failure(8, "new stack size would exceed maximum size");
  uint8_t *old = stack->storage;
  void *storage = stack->owns_storage ? old : NULL;
  status_t status = stack->allocator.control(stack->allocator.self, stack->owns_storage ? 2 : 0, &capacity, &storage);
  if (status) return status;
  if (!stack->owns_storage) memcpy(storage, old, stack->capacity);
  ptrdiff_t moved = (uint8_t *)storage - old;
  stack->storage = storage;
  stack->capacity = capacity;
  stack->owns_storage = 1;
  stack->top = (frame_t *)((uint8_t *)stack->top + moved);
  for (frame_t *frame = stack->top; frame->parent; frame = frame->parent)
    frame->parent = (frame_t *)((uint8_t *)frame->parent + moved);
  return 0;
}
static status_t enter(vm_stack_t *stack, function_t function, size_t data_size, void (*cleanup)(void *), frame_t **out) {
  size_t size = sizeof(frame_t) + data_size;
  status_t status = 0;
  if (stack->size + size > stack->capacity && (status = grow(stack, stack->size + size))) return status;
  void *state = NULL;
  if (stack->top->function.module == function.module) state = stack->top->state;
  else if ((status = stack->resolve_state(stack->resolver, function.module, (module_t **)&state))) return status;
  frame_t *frame = (frame_t *)(stack->storage + stack->size);
  if ((uintptr_t)frame % 16) return failure(13, "frames are not aligned");
  memset(frame, 0, size);
  *frame = (frame_t){size, stack->top, data_size, cleanup, 1, function, state, 0, stack->top->depth + 1};
  stack->size += size;
  stack->top = frame;
  *out = frame;
  return 0;
}
static status_t leave(vm_stack_t *stack) {
  frame_t *frame = stack->top;
  if (frame->cleanup) frame->cleanup(&frame->type);
  stack->size -= frame->size;
  stack->top = frame->parent;
  return 0;
}
static void count_cleanup(void *frame) { cleanups += ((int32_t *)frame)[0] == 1; }

static string_t text(const char *s) { return (string_t){s, strlen(s)}; }
static void destroy(void *self) {
  framed_t *module = self;
  unregister_type(module->instance, &token_type);
  module->allocator.control(module->allocator.self, 3, NULL, &self);
}
static string_t name(void *self) { return TEXT("framed"); }
static signature_t signature(void *self) { return (signature_t){0, 0, 0, COUNT, 0}; }
static status_t dependencies(void *self, status_t (*note)(void *, const dependency_t *), void *data) { return 0; }
static status_t get_function(void *self, int linkage, size_t ordinal, function_t *function, string_t *out_name,
                             string_t *cconv) {
  if (linkage != 2 || ordinal >= COUNT) return failure(3, "function ordinal out of range");
  if (function) *function = (function_t){self, 2, ordinal};
  if (out_name) *out_name = text(EXPORTS[ordinal][0]);
  if (cconv) *cconv = text(EXPORTS[ordinal][1]);
  return 0;
}
static status_t alloc_state(void *self, allocator_t allocator, void **out) {
  *out = calloc(1, sizeof(state_t));
  return 0;
}
static void free_state(void *self, void *state) { free(state); }

static status_t deep(framed_t *module, vm_stack_t *stack, function_t function, int32_t depth, int32_t *out) {
  frame_t *frame;
  status_t status = enter(stack, function, 1008, count_cleanup, &frame);
  if (status) return status;
  memset(frame + 1, 0x55, 1008);
  if (depth > 1) status = deep(module, stack, function, depth - 1, out);
  else *out = stack->top->depth;
  return status ? status : leave(stack);
}
static status_t begin_call(void *self, vm_stack_t *stack, call_t call) {
  framed_t *module = self;
  frame_t *frame;
  status_t status = enter(stack, call.function, 0, count_cleanup, &frame);
  if (status) return status;
  if (module->disorder) return 0;
  int32_t argument = 0, result = 0;
  if (call.arguments.size) memcpy(&argument, call.arguments.data, 4);
  state_t *state = frame->state;
  ++state->calls;
  ref_t ref;
  switch (call.function.ordinal) {
    case 0: result = state->calls; break;
    case 1: result = cleanups; break;
    case 2: if ((status = deep(module, stack, call.function, argument, &result))) return status; break;
    case 3: return failure(argument, "framed failure");
    case 4:
      memcpy(&ref, call.arguments.data, sizeof ref);
      if (ref.type != token_registration) return failure(3, ref.type ? "ref type mismatch" : "ref is null");
      result = ((token_t *)ref.pointer)->number;
      break;
    case 5: {
      token_t *token = malloc(sizeof *token);
      *token = (token_t){1, argument};
      ++live_tokens;
      ref = (ref_t){token, token_registration};
      memcpy(call.results.data, &ref, sizeof ref);
      return leave(stack);
    }
    case 6: result = live_tokens; break;
  }
  if (call.results.size == 4) memcpy(call.results.data, &result, 4);
  return leave(stack);
}

EXPORT status_t create_framed(uint32_t version, instance_t *instance, size_t count, const pair_t *parameters,
                              allocator_t allocator, module_t **out) {
  *out = NULL;
  buffer_registration = find_type(instance, "vm.buffer");
  if (!buffer_registration || !find_type(instance, "hal.buffer_view"))
    return failure(13, "VM type not registered with the instance");
  status_t status = register_type(instance, &token_type, &token_registration);
  if (status) return status;
  framed_t *module = calloc(1, sizeof *module);
  module->instance = instance;
  module->allocator = allocator;
  module->disorder = count == 1 && equals(parameters[0].value, "other");
  module->module = (module_t){module, 1, destroy, name, signature, dependencies, NULL, NULL, get_function, NULL, NULL,
                              alloc_state, free_state, NULL, NULL, NULL, begin_call, NULL};
  *out = &module->module;
  return 0;
}
