/* SPDX-FileCopyrightText: 2026 The vmm authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * vmm_allocator.h - memory for frameworks, in libvmm.so: one allocator over all devices of a
 * process, whose blocks record their device, their stream and the other streams that use them.
 * PyTorch's allocators use it (docs/pytorch.md). The rules of vmm.h for every call apply.
 */
#ifndef VMM_ALLOCATOR_H
#define VMM_ALLOCATOR_H

#include <vmm.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A stream-ordered pool for each device, created at its first use: with handles of at most 40 MiB
 *  and a headroom from 1.01 on, unless VMM_POOL_POLICY is set and read. Streams are as in
 *  vmm_pool_allocate(), and stay until vmm_allocator_forget_stream(). Memory that was freed goes to
 *  another stream, or is unmapped, behind all work of the device, so that a stream which was not
 *  recorded may still read it (CUDA before 12.5, Level Zero: behind the work of its own stream). A
 *  forked child may use an allocator that had opened no device before the fork. */
typedef struct vmm_allocator vmm_allocator;

/** Options of an allocator; each comment ends with the default. */
typedef struct vmm_allocator_options {
  uint64_t struct_size;
  const char* driver; /* as vmm_driver_open(); NULL: "cuda". Read by vmm_allocator_create() only.
                         "cuda", "level_zero" and "fake" have a device for each number, others 0 */
  uint64_t reservation_bytes; /* addresses reserved at a time, for each device: 8 TiB */
  uint32_t capture;           /* VMM_CAPTURE_*: PRIVATE */
  uint32_t read_environment;  /* 1: VMM_POOL_* and VPMM_* variables change the pools: 0 */
} vmm_allocator_options;

/** Requires: struct_size is sizeof(vmm_allocator_options). Effects: *options gets the defaults. */
VMM_API vmm_status vmm_allocator_options_init(vmm_allocator_options* options,
                                              uint64_t struct_size) VMM_NOEXCEPT;

/** Requires: `options` is NULL for the defaults, or was initialised. Errors: BAD_OPTION,
 *  OUT_OF_HOST_MEMORY. Cost: no driver call. */
VMM_API VMM_CHECKED vmm_status vmm_allocator_create(const vmm_allocator_options* options,
                                                    vmm_allocator** allocator) VMM_NOEXCEPT;

/** Destroys an allocator. NULL: nothing. Requires, effects: as vmm_pool_destroy(), for each device.
 *  Errors: IN_USE (another thread is inside a call, a capture is announced, or
 *  vmm_allocator_keep() was called). */
VMM_API vmm_status vmm_allocator_destroy(vmm_allocator* allocator) VMM_NOEXCEPT;

/** Allocates memory on a device for work submitted to `stream` from now on. Before it fails for
 *  lack of memory, it releases retained memory and waits for the work of pending frees.
 *  Errors: as vmm_pool_allocate(); UNAVAILABLE and others of vmm_driver_open(), for a device that
 *  is used for the first time. Cost: that of vmm_pool_allocate(), an entry in a table, and a query
 *  of an event while frees are pending. */
VMM_API VMM_CHECKED vmm_status vmm_allocator_allocate(vmm_allocator* allocator, uint64_t size_bytes,
                                                      int32_t device, vmm_stream stream,
                                                      void** at) VMM_NOEXCEPT;

/** Frees a block after all work submitted to its own stream and the recorded ones so far. NULL:
 *  nothing. Never waits. Errors: UNKNOWN_ADDRESS. Cost: as vmm_pool_free(), and an event
 *  for each recorded stream. */
VMM_API vmm_status vmm_allocator_free(vmm_allocator* allocator, void* at) VMM_NOEXCEPT;

/** The two frequent calls, for a framework that never destroys its allocator: functions like
 *  vmm_allocator_allocate() and vmm_allocator_free(), with `self` in place of the handle, without a
 *  lookup. `at` is not NULL. */
typedef struct vmm_allocator_calls {
  uint64_t struct_size;
  void* self;
  vmm_status (*allocate)(void* self, uint64_t size_bytes, int32_t device, vmm_stream stream,
                         void** at);
  vmm_status (*free)(void* self, void* at);
} vmm_allocator_calls;

/** Requires: calls->struct_size is set. Effects: *calls gets the functions; the allocator is kept
 *  until the process ends, and vmm_allocator_destroy() then returns IN_USE.
 *  Errors: INVALID_ARGUMENT. */
VMM_API vmm_status vmm_allocator_keep(vmm_allocator* allocator,
                                      vmm_allocator_calls* calls) VMM_NOEXCEPT;

/** Records that another stream uses the block: its memory is not reused before the work that is
 *  submitted to this stream when the block is freed has finished. The block's own stream: nothing.
 *  Errors: UNKNOWN_ADDRESS, OUT_OF_HOST_MEMORY. */
VMM_API vmm_status vmm_allocator_record_stream(vmm_allocator* allocator, void* at,
                                               vmm_stream stream) VMM_NOEXCEPT;

/** Announce captures, on any thread, also nested: between these calls streams may be captured into
 *  graphs, and a block that is freed on such a stream, or was recorded for one, is not reused until
 *  all captures have ended. Memory that is freed meanwhile stays with its stream.
 *  Errors: NOT_PERMITTED (end without begin). */
VMM_API vmm_status vmm_allocator_begin_capture(vmm_allocator* allocator) VMM_NOEXCEPT;
VMM_API vmm_status vmm_allocator_end_capture(vmm_allocator* allocator) VMM_NOEXCEPT;

/** Call it before a stream is destroyed. Errors: as vmm_pool_forget_stream(). */
VMM_API vmm_status vmm_allocator_forget_stream(vmm_allocator* allocator, int32_t device,
                                               vmm_stream stream) VMM_NOEXCEPT;

/** Every device that is in use. */
#define VMM_ALL_DEVICES (-1)

/** Completes pending frees whose work has finished, and releases free memory until at most
 *  `limit_bytes` of it are retained on each device. Never waits. Requires, errors: as
 *  vmm_pool_trim(). */
VMM_API vmm_status vmm_allocator_trim(vmm_allocator* allocator, int32_t device,
                                      uint64_t limit_bytes, vmm_trim_report* report) VMM_NOEXCEPT;

/** Limits the physical memory of a device to `limit_bytes`; 0: no limit. Memory already held stays.
 *  Errors: those of a device that is used for the first time. */
VMM_API vmm_status vmm_allocator_set_limit(vmm_allocator* allocator, int32_t device,
                                           uint64_t limit_bytes) VMM_NOEXCEPT;

/** Lets another device read and write a device's memory, present and later.
 *  Errors: NOT_SUPPORTED (it does not reach the memory), those of the driver. */
VMM_API vmm_status vmm_allocator_add_peer(vmm_allocator* allocator, int32_t device,
                                          int32_t peer) VMM_NOEXCEPT;

/** A block for other processes of the user. The bytes can be sent by any means. */
typedef struct vmm_block_export {
  uint8_t bytes[64];
} vmm_block_export;

/** Exports the live block that begins at `at`, until it is freed. A second call returns the same
 *  bytes. The first call of a process starts a thread and makes a socket in /tmp/vmm-UID, or else
 *  in /run/user/UID/vmm, of mode 0700.
 *  Requires: the block is freed after every import of it has ended, since its memory serves other
 *  blocks then. Importers may read and write the whole physical handles behind the block.
 *  Errors: UNKNOWN_ADDRESS, NOT_SUPPORTED (the device exports no descriptors), UNAVAILABLE (no
 *  folder for the socket), OUT_OF_HOST_MEMORY. Cost: no driver call; an export for each handle when
 *  another process imports the block. */
VMM_API vmm_status vmm_allocator_export(vmm_allocator* allocator, const void* at,
                                        vmm_block_export* out) VMM_NOEXCEPT;

/** Maps a block that another process of the user exported, on a device; *at becomes its address,
 *  for vmm_allocator_end_import(). The memory stays until then, even if that process ends. Waits
 *  for that process, at most 10 s. Needs no right to trace it.
 *  Errors: UNAVAILABLE (the block was freed, or that process has ended, is another user's, or has
 *  another /tmp), INVALID_ARGUMENT (other bytes), those of the driver and of a device that is used
 *  for the first time. */
VMM_API VMM_CHECKED vmm_status vmm_allocator_import(vmm_allocator* allocator,
                                                    const vmm_block_export* from, int32_t device,
                                                    void** at) VMM_NOEXCEPT;

/** Unmaps an imported block after all work of its device. During a capture, a later call of
 *  vmm_allocator_import() or vmm_allocator_end_import() unmaps it. Errors: UNKNOWN_ADDRESS. */
VMM_API vmm_status vmm_allocator_end_import(vmm_allocator* allocator, void* at) VMM_NOEXCEPT;

/** Has a counter of this process set to 0 when the process that is to count it down ends before,
 *  as one that is killed. The counter is the int64_t at a byte of a file of this user's in
 *  /dev/shm; its value is 1. `block` is an export of this process, with which the counter goes to
 *  the other one. Call vmm_block_hold() there.
 *  Errors: INVALID_ARGUMENT (other bytes, another value), UNAVAILABLE (no such file),
 *  OUT_OF_HOST_MEMORY. */
VMM_API vmm_status vmm_block_lend(const vmm_block_export* block, const char* file,
                                  uint64_t offset_bytes) VMM_NOEXCEPT;

/** Reports to the process that exported the block that this one is to count the counter down; call
 *  it before vmm_allocator_import(). The report holds until this process has ended, and all its
 *  children that were forked since and did not exec, and 200 ms more. Without it, or on a kernel
 *  before 5.3, the counter keeps its value.
 *  Errors: INVALID_ARGUMENT (other bytes), UNAVAILABLE (that process has ended),
 *  OUT_OF_HOST_MEMORY. */
VMM_API vmm_status vmm_block_hold(const vmm_block_export* block, const char* file,
                                  uint64_t offset_bytes) VMM_NOEXCEPT;

/** The element of an array: it never grows. */
typedef struct vmm_allocation {
  void* base;
  uint64_t requested_bytes; /* as requested */
  uint64_t size_bytes;      /* rounded up */
  vmm_stream stream;
  int32_t device;
  uint32_t is_pending; /* 1: freed, and work of other streams may use it */
} vmm_allocation;

/** The live block that begins at `at`. Errors: UNKNOWN_ADDRESS. */
VMM_API vmm_status vmm_allocator_find(vmm_allocator* allocator, const void* at,
                                      vmm_allocation* found) VMM_NOEXCEPT;

/** Effects: *count becomes the number of blocks of a device, live and pending; the first `capacity`
 *  of them are written to `blocks`, in address order. The number may change until the next call.
 *  Errors: OUT_OF_HOST_MEMORY. */
VMM_API vmm_status vmm_allocator_list(vmm_allocator* allocator, int32_t device,
                                      vmm_allocation* blocks, uint64_t capacity,
                                      uint64_t* count) VMM_NOEXCEPT;

/** As vmm_pool_regions(), of a device. */
VMM_API vmm_status vmm_allocator_regions(vmm_allocator* allocator, int32_t device,
                                         vmm_pool_region* regions, uint64_t capacity,
                                         uint64_t* count) VMM_NOEXCEPT;

/** A level, its peak and its changes. The element of an array: it never grows. */
typedef struct vmm_level {
  int64_t current;
  int64_t peak;
  int64_t added;   /* sum of all increases */
  int64_t removed; /* sum of all decreases */
} vmm_level;

/** Which blocks a level counts: all, those of at most 1 MiB, or larger ones. */
enum { VMM_LEVEL_ALL = 0, VMM_LEVEL_SMALL = 1, VMM_LEVEL_LARGE = 2, VMM_LEVEL_COUNT = 3 };

/** Of one device. Small blocks are those of at most 1 MiB. */
typedef struct vmm_allocator_statistics {
  uint64_t struct_size;
  vmm_level allocations[VMM_LEVEL_COUNT];     /* blocks */
  vmm_level allocated_bytes[VMM_LEVEL_COUNT]; /* rounded up */
  vmm_level active[VMM_LEVEL_COUNT];          /* blocks, with pending frees */
  vmm_level active_bytes[VMM_LEVEL_COUNT];
  vmm_level requested_bytes[VMM_LEVEL_COUNT]; /* of active blocks, as requested */
  vmm_level held_bytes;                       /* physical memory */
  vmm_level handles;                          /* physical handles */
  uint64_t short_count;                       /* requests that failed for lack of memory */
  uint64_t retry_count; /* requests that succeeded after waiting for pending frees */
  uint64_t limit_bytes;
  uint64_t host_wait_count; /* waits for the work of all pending frees */
} vmm_allocator_statistics;

/** Requires: statistics->struct_size is set. Effects: a device that was not used has zeros. */
VMM_API vmm_status vmm_allocator_get_statistics(vmm_allocator* allocator, int32_t device,
                                                vmm_allocator_statistics* statistics) VMM_NOEXCEPT;

/** Sets the peaks to the current values. */
VMM_API vmm_status vmm_allocator_reset_peaks(vmm_allocator* allocator, int32_t device) VMM_NOEXCEPT;
/** Added, removed and the counts become 0. */
VMM_API vmm_status vmm_allocator_reset_counts(vmm_allocator* allocator,
                                              int32_t device) VMM_NOEXCEPT;

/* ---- plain functions ------------------------------------------------------------------------- */

/* For frameworks that take addresses of functions, as torch.cuda.memory.CUDAPluggableAllocator
 * does. They work on one allocator of the process: that of vmm_plugin_use(), else one on "cuda"
 * that lives as long as the process and gives captured graphs memory of their own. */

/** Selects the allocator; NULL: that of the process. Requires: no block of the previous one is
 *  freed afterwards. */
VMM_API vmm_status vmm_plugin_use(vmm_allocator* allocator) VMM_NOEXCEPT;

/** Called by vmm_plugin_malloc() instead of returning NULL; it may throw. NULL: none. The
 *  arguments name a function, a file and a line, and a description, which begins with "CUDA out of
 *  memory. " if memory, the limit or addresses do not suffice. */
typedef void (*vmm_plugin_failure)(const char* function, const char* file, uint32_t line,
                                   const char* text);
/** NULL removes it. Errors: none. */
VMM_API vmm_status vmm_plugin_set_failure(vmm_plugin_failure failure) VMM_NOEXCEPT;

/** NULL on failure: vmm_last_error_text() has the reason. 0 bytes: NULL, and no failure. */
VMM_API void* vmm_plugin_malloc(int64_t size_bytes, int32_t device, vmm_stream stream);
VMM_API void vmm_plugin_free(void* at, uint64_t size_bytes, int32_t device,
                             vmm_stream stream) VMM_NOEXCEPT;
VMM_API void vmm_plugin_record_stream(void* at, vmm_stream stream) VMM_NOEXCEPT;
VMM_API void vmm_plugin_init(int32_t device_count) VMM_NOEXCEPT;
/** Waits for the work of pending frees, unless a capture is announced, and releases all free
 *  memory. */
VMM_API void vmm_plugin_empty_cache(void) VMM_NOEXCEPT;
VMM_API void vmm_plugin_memory_fraction(double fraction, int32_t device) VMM_NOEXCEPT;
/** The block that begins at `at`, and its size; NULL if none does. */
VMM_API void* vmm_plugin_base(void* at, uint64_t* size_bytes) VMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* VMM_ALLOCATOR_H */
