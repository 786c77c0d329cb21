/* SPDX-FileCopyrightText: 2026 The vmm authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * vmm.h - the C interface of vmm, in libvmm.so.
 *
 * A driver is opened by name. A pool allocates in stream order, from a few bytes up. A manager
 * allocates whole granules, which grow and are copied by remapping. docs/c.md has a first program,
 * docs/decisions/0010 the reasons for the design.
 *
 * Rules for every call:
 *
 * Errors    A call returns VMM_SUCCESS or a code that is never 0. A failed call has changed
 *           nothing, unless its comment states otherwise. vmm_last_error() returns the calling
 *           thread's last error. No call throws, and no argument ends the process, except a pointer
 *           to invalid memory. Every call may return VMM_ERROR_INVALID_HANDLE (null, not a handle,
 *           of another kind, or destroyed) and VMM_ERROR_INVALID_ARGUMENT (a null pointer, or an
 *           impossible struct_size); they are not listed again.
 * Threads   Every call may be made from any thread, on any handle, at any time. Destroying a handle
 *           waits for calls that end within milliseconds, and fails with VMM_ERROR_IN_USE while
 *           another goes on. Other threads' calls wait meanwhile, and continue if it failed.
 * Forks     In a forked child a call on a handle of the parent returns VMM_ERROR_NOT_PERMITTED, or
 *           zeros if it returns no status or only reads figures; destroying the handle succeeds and
 *           does not affect the parent. A child opens a driver of its own.
 * Structs   Begin with struct_size, which the caller sets to sizeof of the struct that it was
 *           compiled with, a multiple of 8 (vmm_*_options_init does it; where it is given an
 *           impossible size, it sets struct_size to 0, which no call accepts). Later versions add
 *           members at the end; 0 in an added member selects the earlier behaviour. Elements of
 *           arrays never grow. Boolean members are 1 or 0.
 * Names     Sizes are in bytes. Texts are UTF-8, end with 0, and live as long as the library unless
 *           a comment limits it.
 * Handles   Are numbers of a pointer's type, and must not be dereferenced.
 */
#ifndef VMM_H
#define VMM_H

#include <stddef.h>
#include <stdint.h>

/** The version of this header; vmm_version() has the library's. */
#define VMM_VERSION_MAJOR 0
#define VMM_VERSION_MINOR 1
#define VMM_VERSION_PATCH 0

#if defined(__GNUC__) || defined(__clang__)
#define VMM_API __attribute__((visibility("default")))
#define VMM_CHECKED __attribute__((warn_unused_result))
#else
#define VMM_API
#define VMM_CHECKED
#endif

#ifdef __cplusplus
#define VMM_NOEXCEPT noexcept
extern "C" {
#else
#define VMM_NOEXCEPT
#endif

/* ---- errors ---------------------------------------------------------------------------------- */

/** The result of a call: one of the values below. Later versions may add some. */
typedef int32_t vmm_status;

enum {
  VMM_SUCCESS = 0,                  /* the call succeeded */
  VMM_ERROR_INVALID_ARGUMENT = 1,   /* a value that the call does not accept */
  VMM_ERROR_BAD_OPTION = 2,         /* an option or environment variable out of its range */
  VMM_ERROR_OUT_OF_MEMORY = 3,      /* the device has no physical memory left for the request */
  VMM_ERROR_OUT_OF_HOST_MEMORY = 4, /* the host has no memory left for records */
  VMM_ERROR_OUT_OF_ADDRESSES = 5,   /* no address range of the size is left */
  VMM_ERROR_OUT_OF_MAPPINGS = 6,    /* the system's limit on mappings is reached */
  VMM_ERROR_OVER_BUDGET = 7,        /* the budget of the options would be exceeded */
  VMM_ERROR_UNKNOWN_ADDRESS = 8,    /* not an address of this pool or manager */
  VMM_ERROR_NOT_ALLOCATED = 9,      /* inside a managed range, but free */
  VMM_ERROR_OVERLAP = 10,           /* the range overlaps one that is recorded or mapped */
  VMM_ERROR_IN_USE = 11,            /* the object is still in use */
  VMM_ERROR_NOT_SUPPORTED = 12,     /* the driver or the device cannot do this */
  VMM_ERROR_NOT_PERMITTED = 13,     /* not in this context: a forked child, a capture, a callback */
  VMM_ERROR_UNAVAILABLE = 14,       /* no driver, no device, or a missing library */
  VMM_ERROR_DEVICE_LOST = 15,       /* the device or its context no longer works */
  VMM_ERROR_FOREIGN = 16,           /* an earlier failure of other work */
  VMM_ERROR_INTERNAL = 17,          /* none of these: see the native code */
  VMM_ERROR_INVALID_HANDLE = 18     /* null, not a handle, of another kind, or destroyed */
};

/** The latest failure of a thread. */
typedef struct vmm_error_info {
  uint64_t struct_size;
  vmm_status status;       /* the call's result; VMM_SUCCESS: no call has failed */
  uint32_t reserved;       /* 0 */
  int64_t native_code;     /* the driver's own number (a CUresult, an errno, a ze_result_t), or 0 */
  const char* name;        /* "out_of_memory" */
  const char* call;        /* the driver call that failed, "map"; "none" without a driver call */
  const char* native_name; /* the driver's own name of its code, or "" */
  const char* advice;      /* the cause and a remedy, or "" */
  const char* text;        /* all of it in one line; until the thread's next failure */
} vmm_error_info;

/** Requires: info->struct_size is set. Effects: fills *info. Successful calls keep the last error.
 *  Errors: only those of every call, which this call does not record. Cost: formats the text. */
VMM_API vmm_status vmm_last_error(vmm_error_info* info) VMM_NOEXCEPT;

/** The text of vmm_last_error(), or "" when no call of this thread has failed; until the thread's
 *  next failure. */
VMM_API const char* vmm_last_error_text(void) VMM_NOEXCEPT;

/** "VMM_ERROR_OUT_OF_MEMORY" for its value; "VMM_ERROR_UNKNOWN" for an unlisted value. */
VMM_API const char* vmm_status_name(vmm_status status) VMM_NOEXCEPT;

/** The version of the loaded library: major * 10000 + minor * 100 + patch. */
VMM_API uint32_t vmm_version(void) VMM_NOEXCEPT;

/** Effects: *bytes is the size in `text`, in the form of the environment variables: a number and a
 *  unit in upper or lower case, "512MiB", "1.5 gib", "4096". Errors: VMM_ERROR_BAD_OPTION for
 *  another text; *bytes is as before. Cost: O(length of the text). */
VMM_API vmm_status vmm_parse_bytes(const char* text, uint64_t* bytes) VMM_NOEXCEPT;

/* ---- drivers --------------------------------------------------------------------------------- */

/** A driver on one device. */
typedef struct vmm_driver vmm_driver;

/** A queue of device work: a cudaStream_t, CUstream or ze_command_queue_handle_t. NULL is
 *  the driver's default stream, and the only one without VMM_FEATURE_STREAMS: pools and managers
 *  refuse others there with VMM_ERROR_INVALID_ARGUMENT.
 *  CUDA's cudaStreamPerThread is a different stream in each thread: vmm refuses it with
 *  VMM_ERROR_INVALID_ARGUMENT. Programs compiled with --default-stream per-thread pass a stream of
 *  their own. */
typedef void* vmm_stream;

/** A name that vmm_driver_open() accepts. The element of an array: it never grows. */
typedef struct vmm_driver_entry {
  const char* name;
  const char* reason; /* the reason if it is not available; else "" */
  uint32_t available; /* 1: it can be opened */
  uint32_t reserved;  /* 0 */
} vmm_driver_entry;

/** Effects: *count becomes the number of names; the first `capacity` of them are written to
 *  `entries`, in the order in which vmm_driver_open() tries them. `entries` may be NULL when
 *  `capacity` is 0. Cost: opens and closes each driver; up to a second with a GPU. */
VMM_API vmm_status vmm_list_drivers(vmm_driver_entry* entries, uint64_t capacity,
                                    uint64_t* count) VMM_NOEXCEPT;

/** Any device: the one in the name, or the first. */
#define VMM_ANY_DEVICE (-1)

/** Opens a driver.
 *  Requires: `name` is "cuda", "level_zero", "host" (plain memory of this machine), "fake" (a
 *  simulated device), "fake:cuda", "fake:level_zero" or "fake:host"; NULL or "" stands for the
 *  environment variable VMM_BACKEND, or, if that is not set, for the first that is available.
 *  `device` is a device's number for cuda and level_zero, and VMM_ANY_DEVICE or 0 for others. It is
 *  VMM_ANY_DEVICE without a name, and for a name with a number ("cuda:1").
 *  Effects: loads the vendor's library; *driver is closed by vmm_driver_close(). VMM_LOG ("off",
 *  "stderr" or a path) logs every driver call.
 *  Errors: BAD_OPTION (no such name, a device for a name without devices or with one, a log that
 *  cannot be written, a malformed VMM_BACKEND or VMM_CUDA_MEMORY, used or not, a library of
 *  VMM_CUDA_LIBRARY or VMM_LEVEL_ZERO_LIBRARY that cannot be loaded), UNAVAILABLE (no such driver
 *  or device here), OUT_OF_HOST_MEMORY, driver errors.
 *  Cost: up to a second. Threads: no thread may change the environment meanwhile. */
VMM_API VMM_CHECKED vmm_status vmm_driver_open(const char* name, int32_t device,
                                               vmm_driver** driver) VMM_NOEXCEPT;

/** Closes a driver. NULL: nothing. Errors: IN_USE (a pool or manager is on it, or another thread is
 *  inside a call). */
VMM_API vmm_status vmm_driver_close(vmm_driver* driver) VMM_NOEXCEPT;

/** The place of memory. */
enum { VMM_PLACE_DEVICE = 0, VMM_PLACE_HOST = 1, VMM_PLACE_HOST_NODE = 2 };

/** What a driver can do: bits of vmm_driver_info.features. */
enum {
  VMM_FEATURE_HOST_ACCESSIBLE = 1 << 0,   /* the host can access the memory */
  VMM_FEATURE_STREAMS = 1 << 1,           /* work is asynchronous */
  VMM_FEATURE_CAPTURE = 1 << 2,           /* streams can be captured into graphs */
  VMM_FEATURE_COPY = 1 << 3,              /* copy, fill, read and write are available */
  VMM_FEATURE_ALIAS = 1 << 4,             /* memory can be mapped at two addresses */
  VMM_FEATURE_HOST_PLACE = 1 << 5,        /* memory can be created on the host */
  VMM_FEATURE_HOST_NODE_PLACE = 1 << 6,   /* on a chosen NUMA node */
  VMM_FEATURE_EXPORT_POSIX_FD = 1 << 7,   /* memory can be exported as a file descriptor */
  VMM_FEATURE_EXPORT_FABRIC = 1 << 8,     /* as a fabric handle */
  VMM_FEATURE_COMPRESSION = 1 << 9,       /* compressible memory */
  VMM_FEATURE_RDMA = 1 << 10,             /* GPUDirect RDMA */
  VMM_FEATURE_MULTICAST_CAPABLE = 1 << 11 /* multicast; not used by this library */
};

/** The identity and the features of a driver. */
typedef struct vmm_driver_info {
  uint64_t struct_size;
  const char* name;     /* "cuda", "level_zero", "host", "fake..." */
  uint64_t features;    /* VMM_FEATURE_* bits */
  uint64_t granularity; /* the smallest mappable unit, bytes */
  uint64_t recommended; /* the recommended unit of allocations, bytes */
  uint32_t place;       /* VMM_PLACE_*: where memory is created */
  int32_t device;       /* the device's number; 0 on the host */
} vmm_driver_info;

/** Requires: info->struct_size is set. Effects: fills *info. Errors: driver errors. */
VMM_API vmm_status vmm_driver_query(vmm_driver* driver, vmm_driver_info* info) VMM_NOEXCEPT;

/** Physical memory at the driver's default place. Effects: either pointer may be NULL. Errors:
 *  driver errors. Cost: a driver call. */
VMM_API vmm_status vmm_driver_memory(vmm_driver* driver, uint64_t* free_bytes,
                                     uint64_t* total_bytes) VMM_NOEXCEPT;

/** A stream for programs without another way to create one. Errors: NOT_SUPPORTED (no streams),
 *  driver errors. */
VMM_API VMM_CHECKED vmm_status vmm_driver_create_stream(vmm_driver* driver,
                                                        vmm_stream* stream) VMM_NOEXCEPT;

/** Requires: the stream is of vmm_driver_create_stream(); pools and managers whose options say
 *  `streams_forgotten` have forgotten it. Errors: driver errors; INVALID_ARGUMENT for the
 *  default stream. */
VMM_API vmm_status vmm_driver_destroy_stream(vmm_driver* driver, vmm_stream stream) VMM_NOEXCEPT;

/** Blocks until the stream's work has finished. Without VMM_FEATURE_STREAMS NULL is the only
 *  stream, and work is finished when a call returns. Errors: NOT_SUPPORTED (a stream on a driver
 *  without streams), INVALID_ARGUMENT (not a stream of the driver, if it can detect that;
 *  cudaStreamPerThread), driver errors. */
VMM_API vmm_status vmm_driver_synchronize_stream(vmm_driver* driver,
                                                 vmm_stream stream) VMM_NOEXCEPT;

/** Orders work submitted to `then` from now on after the work submitted to `first` so far; the host
 *  does not wait. No effect for two names of one stream. Without VMM_FEATURE_STREAMS NULL is the
 *  only stream. Errors: as vmm_driver_synchronize_stream. Cost: four driver calls. */
VMM_API vmm_status vmm_driver_order_streams(vmm_driver* driver, vmm_stream first,
                                            vmm_stream then) VMM_NOEXCEPT;

/** Copies bytes from host memory to device memory, and back, before it returns. Not ordered with
 *  any stream: synchronise first. Requires: the host memory is `size_bytes` long.
 *  Errors: INVALID_ARGUMENT (a range that is not mapped, as that of suspended memory, if the driver
 *  can detect that; one that ends behind the last address), NOT_SUPPORTED, driver errors. */
VMM_API vmm_status vmm_driver_write(vmm_driver* driver, void* target, const void* source,
                                    uint64_t size_bytes) VMM_NOEXCEPT;
VMM_API vmm_status vmm_driver_read(vmm_driver* driver, void* target, const void* source,
                                   uint64_t size_bytes) VMM_NOEXCEPT;

/** Sets `size_bytes` bytes to `value`, in the order of the stream. Errors: as vmm_driver_write. */
VMM_API vmm_status vmm_driver_fill(vmm_driver* driver, void* target, uint8_t value,
                                   uint64_t size_bytes, vmm_stream stream) VMM_NOEXCEPT;

/* ---- pools ----------------------------------------------------------------------------------- */

/** A stream-ordered pool: memory freed on a stream serves that stream again at once, others when
 *  the work before the free has finished, or behind a wait on the device. It grows by moving free
 *  memory before it creates more. */
typedef struct vmm_pool vmm_pool;

/** The effect of allocate and free on a stream that is being captured into a graph. */
enum {
  VMM_CAPTURE_REFUSE = 0,   /* they return NOT_PERMITTED and change nothing */
  VMM_CAPTURE_PRIVATE = 1,  /* the graph gets memory of its own, until it is released */
  VMM_CAPTURE_UNCHECKED = 2 /* no stream of this pool is ever captured: no checks */
};

/** When a stream gets an arena: free memory with a lock of its own, from which allocations and
 *  frees take no lock that other streams use. docs/decisions/0021. */
enum {
  VMM_ARENAS_WHEN_CONTENDED = 0, /* once threads have waited for another on the pool's lock */
  VMM_ARENAS_ALWAYS = 1,         /* from a stream's first growth on */
  VMM_ARENAS_NEVER = 2
};

/** Options of a pool; each comment ends with the default. */
typedef struct vmm_pool_options {
  uint64_t struct_size;
  const char* policy; /* "pool", "vpmm", "off"; NULL: "pool". Read by vmm_pool_create() only */
  uint64_t reservation_bytes; /* address space reserved at a time: 8 TiB */
  uint64_t page_bytes;        /* handles are multiples of it; rounded up to the driver's
                                 granularity. 0: the device's recommendation */
  uint64_t page_count;        /* pages mapped at the start: 0 */
  vmm_stream first_stream;    /* the stream for which these pages are free: NULL */
  uint64_t budget_bytes;      /* limit of physical memory held; 0: no limit but the device's */
  uint32_t wait_when_short;   /* 1: the last step before out of memory may block the caller */
  uint32_t capture;           /* VMM_CAPTURE_*: REFUSE */
  uint32_t use_place;         /* 1: memory is created at `place`, not at the default place: 0 */
  uint32_t place;             /* VMM_PLACE_* */
  int32_t place_ordinal;      /* device number or NUMA node; 0 on the host */
  uint32_t read_environment;  /* 1: VMM_POOL_* and VPMM_* variables change the options: 0 */
  uint32_t report_live;       /* 1: a line on stderr for blocks that are live at the end: 1 */
  uint32_t reserved;          /* 0 */
  uint32_t stream_arenas;     /* VMM_ARENAS_*: WHEN_CONTENDED */
  /* 1: the caller promises vmm_pool_capture_begin() and vmm_pool_capture_end() around every
     capture on a stream that is used with the pool; calls query the driver only in between. No
     effect with VMM_CAPTURE_UNCHECKED, which makes no queries: 0 */
  uint32_t captures_announced;
  /* 1: the caller promises vmm_pool_forget_stream() before it destroys a stream that was passed to
     the pool. The pool then may pass its streams to the driver at any time, and queries them for
     unannounced captures. 0: streams may be destroyed at any time, and the pool records events
     behind all work of the device. CUDA before 12.5 and Level Zero have no such event: there 0
     means the same as 1: 0 */
  uint32_t streams_forgotten;
} vmm_pool_options;

/** Requires: struct_size is sizeof(vmm_pool_options). Effects: *options gets the defaults. */
VMM_API vmm_status vmm_pool_options_init(vmm_pool_options* options,
                                         uint64_t struct_size) VMM_NOEXCEPT;

/** Creates a pool on a driver, which cannot be closed before the pool is destroyed.
 *  Requires: `options` is NULL for the defaults, or was initialised.
 *  Effects: the caller destroys *pool.
 *  Errors: BAD_OPTION, NOT_SUPPORTED (an option of a newer version; a device without the feature
 *  that an option requires), OUT_OF_MEMORY and others of allocating the pages, OUT_OF_HOST_MEMORY,
 *  driver errors. Cost: driver calls; creates page_count pages and no other memory. */
VMM_API VMM_CHECKED vmm_status vmm_pool_create(vmm_driver* driver, const vmm_pool_options* options,
                                               vmm_pool** pool) VMM_NOEXCEPT;

/** Destroys a pool. NULL: nothing.
 *  Requires: no stream is being captured, and no graph that uses its memory is launched again.
 *  Effects: waits for all work of the device and releases all memory, live blocks included.
 *  Errors: IN_USE (another thread, or a callback of this pool, is inside a call; a capture was
 *  announced and has not ended; or a suspender has it as a region): the pool is as before. */
VMM_API vmm_status vmm_pool_destroy(vmm_pool* pool) VMM_NOEXCEPT;

/** Allocates memory for work submitted to `stream` after the call. Its contents are unspecified.
 *  Requires: other streams that use it are ordered behind `stream`.
 *  Effects: *at is the block's address, a multiple of 512; on failure NULL.
 *  Errors: INVALID_ARGUMENT (0 bytes, cudaStreamPerThread), OUT_OF_MEMORY and OVER_BUDGET (after
 *  every step, including memory of the driver's other pools and managers that no work uses, see
 *  vmm_pool_last_shortage; at once if the live blocks and the request exceed the device or the
 *  budget; memory held does not grow), OUT_OF_ADDRESSES, OUT_OF_HOST_MEMORY, IN_USE (too many
 *  streams: forget destroyed ones), NOT_PERMITTED (the stream is being captured, or this is a
 *  callback of the pool), driver errors.
 *  Cost: some tens of nanoseconds and no driver call while memory freed on the stream fits. */
VMM_API VMM_CHECKED vmm_status vmm_pool_allocate(vmm_pool* pool, uint64_t size_bytes,
                                                 vmm_stream stream, void** at) VMM_NOEXCEPT;

/** vmm_pool_allocate() at a multiple of an alignment, which is a power of two up to 2 MiB. The
 *  memory before and behind the block stays free. Errors: INVALID_ARGUMENT (not a power of two),
 *  NOT_SUPPORTED (above 2 MiB: allocate from a manager), as vmm_pool_allocate. */
VMM_API VMM_CHECKED vmm_status vmm_pool_allocate_aligned(vmm_pool* pool, uint64_t size_bytes,
                                                         uint64_t alignment_bytes,
                                                         vmm_stream stream, void** at) VMM_NOEXCEPT;

/** Frees a block in the order of `stream`: after all work submitted to it so far. Does not wait.
 *  NULL: nothing.
 *  Requires: work of other streams that uses the block is ordered before that point, and so is the
 *  work submitted to the allocating stream before the allocation.
 *  Errors: UNKNOWN_ADDRESS, NOT_ALLOCATED (freed before), INVALID_ARGUMENT (inside a block),
 *  IN_USE (too many streams), NOT_PERMITTED (the stream is being captured), OUT_OF_HOST_MEMORY.
 *  Cost: as vmm_pool_allocate. */
VMM_API vmm_status vmm_pool_free(vmm_pool* pool, void* at, vmm_stream stream) VMM_NOEXCEPT;

/** vmm_pool_free() for interfaces that pass a size. The pool ignores `size_bytes`. */
VMM_API vmm_status vmm_pool_free_sized(vmm_pool* pool, void* at, uint64_t size_bytes,
                                       vmm_stream stream) VMM_NOEXCEPT;

/** Frees a block after all work submitted to the device so far, on every stream, as cudaFree does,
 *  without waiting. NULL: nothing. The memory is reused, on any stream, once an event behind all
 *  that work has passed. Without such an event in the driver (CUDA before 12.5, Level Zero), it is
 *  reused after the work of the streams registered with the pool.
 *  Requires: vmm_pool_capture_begin() for captures on streams that made no call on the pool; the
 *  event would invalidate them. While a capture is announced, or a stream of the pool is captured,
 *  the memory is not reused. Errors: as vmm_pool_free, except that of a captured stream. Cost: as
 *  vmm_pool_free, and at most one event. */
VMM_API vmm_status vmm_pool_free_unordered(vmm_pool* pool, void* at) VMM_NOEXCEPT;
/** Announce a capture on a stream without a record in the pool: capture_begin before
 *  cuStreamBeginCapture, capture_end after cuStreamEndCapture, in pairs, from any thread.
 *  Required around every capture if the options have captures_announced: then a call served from
 *  free memory does not detect an unannounced capture, whose graph shares memory with later work,
 *  and a call that needs the driver returns NOT_PERMITTED.
 *  Errors: of capture_end: INVALID_ARGUMENT (no capture was announced). Cost: a lock; with
 *  captures_announced each call on the pool queries the driver until the last capture has ended. */
VMM_API vmm_status vmm_pool_capture_begin(vmm_pool* pool) VMM_NOEXCEPT;
VMM_API vmm_status vmm_pool_capture_end(vmm_pool* pool) VMM_NOEXCEPT;

/** Keeps the memory behind the block in place, even after the block is freed, until
 *  vmm_pool_unpin() has been called as often: for memory that is accessed outside of the streams
 *  (by a network card, another process, a graph).
 *  Errors: UNKNOWN_ADDRESS, NOT_ALLOCATED, INVALID_ARGUMENT (inside a block; unpin: not pinned),
 *  OUT_OF_HOST_MEMORY, of pin: IN_USE (suspended). Cost: O(1), no driver call. */
VMM_API vmm_status vmm_pool_pin(vmm_pool* pool, void* at) VMM_NOEXCEPT;
VMM_API vmm_status vmm_pool_unpin(vmm_pool* pool, void* at) VMM_NOEXCEPT;

/** Frees the pool's record of a stream; a pool has 4,000. Not needed before a stream is destroyed,
 *  unless `streams_forgotten` of the options promises it. Requires: the stream exists, and no
 *  thread allocates or frees on it any more. Effects: blocks allocated on it stay live, and a later
 *  stream of the same handle counts as a new one. A stream without a record is not an error.
 *  Errors: IN_USE (it is being captured, or freed on), OUT_OF_HOST_MEMORY, NOT_PERMITTED (in a
 *  callback), driver errors. Cost: an event if anything was freed on it. */
VMM_API vmm_status vmm_pool_forget_stream(vmm_pool* pool, vmm_stream stream) VMM_NOEXCEPT;

/** The number of the capture that the stream is in, for release: query it before the capture ends.
 *  Errors: INVALID_ARGUMENT (the stream is not being captured), NOT_SUPPORTED, driver errors. */
VMM_API vmm_status vmm_pool_capture_number(vmm_pool* pool, vmm_stream stream,
                                           uint64_t* number) VMM_NOEXCEPT;

/** Releases the memory of a captured graph, when the graph is destroyed: it becomes free for
 *  `stream`.
 *  Requires: the graph's last launch is ordered before. An unknown number is not an error.
 *  Errors: IN_USE (the capture is in progress on this stream), OUT_OF_HOST_MEMORY, NOT_PERMITTED
 *  (in a callback), driver errors. */
VMM_API vmm_status vmm_pool_capture_release(vmm_pool* pool, uint64_t number,
                                            vmm_stream stream) VMM_NOEXCEPT;

/** Blocks until all work before the frees so far has finished, also while the pool is suspended.
 *  Errors: NOT_PERMITTED (in a callback, while a capture is announced or a known stream is
 *  captured), driver errors. */
VMM_API vmm_status vmm_pool_synchronize(vmm_pool* pool) VMM_NOEXCEPT;

/** The result of vmm_pool_trim() and vmm_manager_trim(). */
typedef struct vmm_trim_report {
  uint64_t struct_size;
  uint64_t released_count; /* handles */
  uint64_t released_bytes;
  uint64_t still_mapped_bytes; /* free, but unfinished work may use it: kept */
} vmm_trim_report;

/** Releases free memory to the driver until at most `limit_bytes` of it are retained. Never waits
 *  for work.
 *  Requires: `report` is NULL, or its struct_size is set. Errors: NOT_PERMITTED (in a callback),
 *  driver errors of a release; *report then counts the memory released before. Cost: driver calls;
 *  others allocate meanwhile. */
VMM_API vmm_status vmm_pool_trim(vmm_pool* pool, uint64_t limit_bytes,
                                 vmm_trim_report* report) VMM_NOEXCEPT;

/** The result of vmm_pool_preallocate(). */
typedef struct vmm_preallocate_report {
  uint64_t struct_size;
  uint64_t created_bytes;  /* free memory that is new to the pool */
  uint64_t moved_bytes;    /* free memory that was moved */
  uint64_t unmapped_count; /* old mappings of moved memory */
  uint64_t left_bytes;     /* requested, less the largest free region that serves it */
} vmm_preallocate_report;

/** Makes a free region of `size_bytes` available on the stream: new memory within the headroom of
 *  the pool's policy, else free memory that moves. The region may serve any request; for two
 *  concurrent requests pass their sum. Pass the peak of live bytes before the first request, and
 *  nearly all requests are served without the driver. It maps one handle at a time, so it can run
 *  in a thread of its own. Never waits for work.
 *  Requires: `report` is NULL, or its struct_size is set.
 *  Errors: INVALID_ARGUMENT (no bytes, cudaStreamPerThread), OUT_OF_MEMORY, OVER_BUDGET,
 *  OUT_OF_ADDRESSES, OUT_OF_HOST_MEMORY, IN_USE (suspended, or too many streams), NOT_PERMITTED (in
 *  a callback), driver errors; *report then counts the completed part. If memory is short,
 *  created memory is released, except memory mapped behind memory in use by unfinished work.
 *  Cost: driver calls by handles; others allocate meanwhile. */
VMM_API vmm_status vmm_pool_preallocate(vmm_pool* pool, uint64_t size_bytes, vmm_stream stream,
                                        vmm_preallocate_report* report) VMM_NOEXCEPT;

/** Figures of a pool. */
typedef struct vmm_pool_statistics {
  uint64_t struct_size;
  uint64_t reserved_bytes; /* addresses */
  uint64_t mapped_bytes;   /* physical memory, each byte once */
  uint64_t live_bytes;     /* requests, rounded up to 512 each */
  uint64_t peak_live_bytes;
  uint64_t peak_mapped_bytes;
  uint64_t reusable_bytes; /* free and mapped */
  uint64_t captured_bytes; /* free, and kept for captured graphs */
  uint64_t hole_bytes;     /* addresses without memory between others */
  uint64_t stale_bytes;    /* addresses whose memory has moved, not yet unmapped */
  uint64_t live_count;
  uint64_t stale_count;
  uint64_t pinned_count;  /* blocks */
  uint64_t stream_count;  /* in use and not forgotten */
  uint64_t slow_count;    /* requests that needed the driver */
  uint64_t created_count; /* handles created */
  uint64_t moved_count;   /* handles moved by remapping */
  uint64_t moved_bytes;
  uint64_t other_stream_count; /* requests served by another stream's memory without moving it */
  uint64_t device_wait_count;  /* waits of streams, on the device */
  uint64_t event_count;        /* events recorded */
  uint64_t host_wait_count;    /* waits of callers, since memory was short */
  uint64_t suspended_bytes;    /* of mapped_bytes: released until they are resumed */
  uint64_t arena_count;        /* streams that have an arena */
  uint64_t arena_bytes;        /* of reusable_bytes: those in arenas */
  uint64_t held_bytes;         /* physical memory created and not released */
  uint64_t pending_bytes;      /* of reusable_bytes: unordered frees behind unfinished work */
} vmm_pool_statistics;

/** Requires: statistics->struct_size is set. Cost: O(streams). */
VMM_API vmm_status vmm_pool_get_statistics(vmm_pool* pool,
                                           vmm_pool_statistics* statistics) VMM_NOEXCEPT;

enum {
  VMM_REGION_LIVE = 0,  /* allocated */
  VMM_REGION_FREE = 1,  /* mapped, free for its stream */
  VMM_REGION_HOLE = 2,  /* nothing mapped */
  VMM_REGION_STALE = 3, /* mapped, but its memory has moved */
  VMM_REGION_BUSY = 4   /* claimed by a growth in progress */
};

/** The element of an array: it never grows. */
typedef struct vmm_pool_region {
  void* base;
  uint64_t size_bytes;
  vmm_stream stream;    /* of free regions: their stream */
  uint32_t kind;        /* VMM_REGION_* */
  uint32_t reserved[3]; /* 0 */
} vmm_pool_region;

/** Effects: *count becomes the number of regions now; the first `capacity` of them are written to
 *  `regions`, in address order; `regions` may be NULL when `capacity` is 0. The number may change
 *  until the next call. Errors: OUT_OF_HOST_MEMORY. Cost: O(regions). */
VMM_API vmm_status vmm_pool_regions(vmm_pool* pool, vmm_pool_region* regions, uint64_t capacity,
                                    uint64_t* count) VMM_NOEXCEPT;

/** The steps tried for the last request that failed for lack of memory, and the memory held. */
typedef struct vmm_shortage {
  uint64_t struct_size;
  uint64_t request_bytes; /* 0: no request has failed for lack of memory */
  vmm_stream stream;
  vmm_status failure; /* the result of the last attempt to create memory */
  uint32_t trimmed;   /* 1: retained memory was released to the driver */
  uint32_t waited;    /* 1: the caller waited for the work of a stream */
  uint32_t reserved;  /* 0 */
  uint64_t live_bytes;
  uint64_t reusable_bytes; /* free, in regions too small for the request */
  uint64_t largest_free_bytes;
  uint64_t held_bytes;
  uint64_t budget_bytes; /* 0: none */
} vmm_shortage;

/** A readable text: the bytes of the statistics by kind, then the regions in address order, with
 *  address, bytes, kind and, of free regions, the stream.
 *  Effects: *size becomes the size of the text with its final zero. At most `capacity` bytes are
 *  written to `text`, the last of them zero; `text` may be NULL when `capacity` is 0. The size may
 *  change until the next call. Errors: OUT_OF_HOST_MEMORY. Cost: O(regions). */
VMM_API vmm_status vmm_pool_dump(vmm_pool* pool, char* text, uint64_t capacity,
                                 uint64_t* size) VMM_NOEXCEPT;

/** Requires: shortage->struct_size is set. */
VMM_API vmm_status vmm_pool_last_shortage(vmm_pool* pool, vmm_shortage* shortage) VMM_NOEXCEPT;

enum {
  VMM_REMAP_MOVED = 0,    /* the memory moves to another address; this one stays mapped */
  VMM_REMAP_UNMAPPED = 1, /* an address whose memory has moved is unmapped */
  VMM_REMAP_RELEASED = 2  /* an address is unmapped and its memory is released */
};

/** A change that is about to be made to an address range without live blocks. */
typedef struct vmm_remap_notice {
  uint64_t struct_size;
  uint64_t epoch; /* grows with each change; ranges of one change have one number */
  void* base;
  uint64_t size_bytes;
  uint32_t kind;     /* VMM_REMAP_* */
  uint32_t reserved; /* 0 */
} vmm_remap_notice;

/** Called before the change, on the thread that makes it, for code that keeps state about an
 *  address after its block was freed (a registration, a captured graph).
 *  Requires: it throws nothing, and waits for no other thread that uses the pool. On its own pool
 *  it may free, pin, unpin, and query; other calls on it return VMM_ERROR_NOT_PERMITTED. While the
 *  pool is destroyed every call on it returns VMM_ERROR_INVALID_HANDLE. */
typedef void (*vmm_remap_callback)(void* context, const vmm_remap_notice* notice);

/** Effects: `callback` is called with `context` from the next change on; *subscription ends it.
 *  Errors: OUT_OF_HOST_MEMORY, NOT_PERMITTED (in a callback). Cost: none without subscribers; then
 *  a call for each change. */
VMM_API VMM_CHECKED vmm_status vmm_pool_subscribe(vmm_pool* pool, vmm_remap_callback callback,
                                                  void* context,
                                                  uint64_t* subscription) VMM_NOEXCEPT;
/** After it has returned the callback is not running and is not called again. Waits for a running
 *  one. Errors: INVALID_ARGUMENT (not a live subscription), NOT_PERMITTED (in a callback). */
VMM_API vmm_status vmm_pool_unsubscribe(vmm_pool* pool, uint64_t subscription) VMM_NOEXCEPT;

/** The number of the latest change. It grows before the change. */
VMM_API vmm_status vmm_pool_remap_epoch(vmm_pool* pool, uint64_t* epoch) VMM_NOEXCEPT;

/** Checks every invariant of the pool. Errors: INTERNAL (one is broken), NOT_PERMITTED (in a
 *  callback). Cost: O(everything). */
VMM_API vmm_status vmm_pool_validate(vmm_pool* pool) VMM_NOEXCEPT;

/* ---- managers -------------------------------------------------------------------------------- */

/** Allocates whole ranges, rounded up to the device's granularity, which grow in place or by
 *  remapping and are copied by remapping if possible. */
typedef struct vmm_manager vmm_manager;

/** Ways to share memory with other processes, as bits. */
enum { VMM_SHARE_NONE = 0, VMM_SHARE_POSIX_FD = 1, VMM_SHARE_WIN32 = 2, VMM_SHARE_FABRIC = 4 };

/** The value of the policy itself. */
#define VMM_POLICY_CHUNK UINT64_MAX
#define VMM_POLICY_RATIO (-1.0)

/** Options of a manager; each comment ends with the default. */
typedef struct vmm_manager_options {
  uint64_t struct_size;
  const char* policy;         /* "va_pool", "keep_mapped" or "virtual_caching"; NULL: "va_pool".
                                 Read by vmm_manager_create() only */
  double fragment_ratio;      /* 0 to 1: the share of a request that a retained handle must have to
                                 serve it; VMM_POLICY_RATIO */
  uint64_t chunk_bytes;       /* size of new handles, 0: one handle for all missing memory;
                                 VMM_POLICY_CHUNK */
  uint64_t reservation_bytes; /* address space reserved at a time: 8 TiB */
  uint64_t budget_bytes;      /* limit of physical memory held; 0: no limit but the device's */
  uint32_t wait_when_short;   /* 1: out of memory may wait for unfinished work on freed memory */
  uint32_t shareable;         /* VMM_SHARE_* of all memory: NONE */
  uint32_t compressible;      /* 1: memory is compressible if the device has
                                 VMM_FEATURE_COMPRESSION, else plain: 0 */
  uint32_t rdma_capable;      /* 1: requires VMM_FEATURE_RDMA: 0 */
  uint32_t use_place;         /* 1: memory is created at `place`: 0 */
  uint32_t place;             /* VMM_PLACE_* */
  int32_t place_ordinal;      /* device number or NUMA node; 0 on the host */
  uint32_t read_environment;  /* 1: VMM_POLICY and others change the options: 0 */
  uint32_t report_live;       /* 1: a line on stderr for blocks that are live at the end: 1 */
  uint32_t reserved;          /* 0 */
  uint32_t streams_forgotten; /* as in vmm_pool_options, of vmm_manager_forget_stream(): 0 */
} vmm_manager_options;

/** Requires: struct_size is sizeof(vmm_manager_options). Effects: *options gets the defaults. */
VMM_API vmm_status vmm_manager_options_init(vmm_manager_options* options,
                                            uint64_t struct_size) VMM_NOEXCEPT;

/** Creates a manager on a driver, which cannot be closed before the manager is destroyed. Requires,
 *  errors: as vmm_pool_create. Cost: driver queries; creates no memory. */
VMM_API VMM_CHECKED vmm_status vmm_manager_create(vmm_driver* driver,
                                                  const vmm_manager_options* options,
                                                  vmm_manager** manager) VMM_NOEXCEPT;

/** Destroys a manager. NULL: nothing. Effects: frees live blocks, waits for their work, and
 *  releases all memory. Errors: IN_USE (another thread is inside a call). */
VMM_API vmm_status vmm_manager_destroy(vmm_manager* manager) VMM_NOEXCEPT;

/** A request for a block. Members that are 0 have their defaults. */
typedef struct vmm_block_request {
  uint64_t struct_size;
  uint64_t size_bytes;      /* not 0; rounded up to the granularity */
  uint64_t growth_bytes;    /* addresses kept free behind the block, so that it can grow in place */
  uint64_t alignment_bytes; /* 0 or a power of two; kept when the block moves */
  vmm_stream stream;        /* the stream that uses the block first */
} vmm_block_request;

/** Allocates a block. Its contents are unspecified. Its stream is ordered, on the device, behind
 *  the work of the memory's earlier users; the host waits for that work by
 *  vmm_manager_synchronize().
 *  Effects: *at is its address; on failure NULL.
 *  Errors: INVALID_ARGUMENT, OUT_OF_MEMORY (after retained memory was released), OVER_BUDGET,
 *  OUT_OF_MAPPINGS, OUT_OF_ADDRESSES, OUT_OF_HOST_MEMORY, driver errors.
 *  Cost: bookkeeping O(log n), driver calls by the number of handles. */
VMM_API VMM_CHECKED vmm_status vmm_manager_allocate(vmm_manager* manager,
                                                    const vmm_block_request* request,
                                                    void** at) VMM_NOEXCEPT;

/** Frees a block after all work submitted to its stream so far; never waits. NULL: nothing.
 *  Requires: other streams that used it are ordered before that.
 *  Errors: UNKNOWN_ADDRESS, NOT_ALLOCATED (freed before), INVALID_ARGUMENT (inside a block),
 *  IN_USE (another thread is changing it), driver errors. */
VMM_API vmm_status vmm_manager_free(vmm_manager* manager, void* at) VMM_NOEXCEPT;
/** The same after the work of `last_use`, the stream that used the block last. */
VMM_API vmm_status vmm_manager_free_on(vmm_manager* manager, void* at,
                                       vmm_stream last_use) VMM_NOEXCEPT;
/** The same at once. Requires: no unfinished work uses the block. */
VMM_API vmm_status vmm_manager_free_idle(vmm_manager* manager, void* at) VMM_NOEXCEPT;

/** A live block of a manager, and its new size. */
typedef struct vmm_resize_request {
  uint64_t struct_size;
  void* at;              /* the address that allocate returned */
  uint64_t size_bytes;   /* not 0 */
  uint64_t growth_bytes; /* addresses to reserve behind the block if it moves */
  uint32_t in_place;     /* 1: keep the address, or fail with OUT_OF_ADDRESSES */
  uint32_t names_stream; /* 1: the block's stream exists, and waits instead of the caller */
} vmm_resize_request;

/** Changes a block's size and keeps its contents; no byte is copied. Effects: *at is its address
 *  now; unchanged on failure. If it moved, the old addresses stay mapped until the work submitted
 *  to the block's stream has finished.
 *  Requires: other streams are ordered behind the block's own, or vmm_manager_synchronize() was
 *  called, before they use added bytes; they are ordered before it if the block may move or shrink.
 *  With names_stream 0, and without streams_forgotten of the options, no stream is being captured,
 *  and the call waits for the earlier users of the added memory; the block's stream may have been
 *  destroyed.
 *  Errors: as vmm_manager_allocate and vmm_manager_free; OUT_OF_ADDRESSES; DEVICE_LOST, after which
 *  the block has no contents and can only be freed. */
VMM_API VMM_CHECKED vmm_status vmm_manager_resize(vmm_manager* manager,
                                                  const vmm_resize_request* request,
                                                  void** at) VMM_NOEXCEPT;

enum {
  VMM_COPY_BYTES = 0, /* bytes are copied; source and target are independent afterwards */
  VMM_COPY_ALIAS = 1, /* both addresses may show the same memory until one of them is freed: write
                         to neither before that. Contents of the target behind the copied bytes are
                         unspecified afterwards */
  VMM_COPY_MOVE = 2   /* as ALIAS; the source may only be freed afterwards */
};

/** A request to copy. */
typedef struct vmm_copy_request {
  uint64_t struct_size;
  void* target;
  const void* source;
  uint64_t size_bytes; /* 0: nothing */
  vmm_stream stream;   /* ordered behind the streams of both blocks */
  uint32_t mode;       /* VMM_COPY_* */
  uint32_t reserved;   /* 0 */
} vmm_copy_request;

/** Copies in the order of the stream. ALIAS and MOVE remap if both ends are whole, idle blocks that
 *  fit, and copy bytes otherwise, which only takes longer.
 *  Errors: NOT_ALLOCATED (a range that reaches outside of a block), NOT_SUPPORTED (bytes must be
 *  copied and the driver cannot), DEVICE_LOST as vmm_manager_resize, driver errors. */
VMM_API VMM_CHECKED vmm_status vmm_manager_copy(vmm_manager* manager,
                                                const vmm_copy_request* request) VMM_NOEXCEPT;

/** A later stream of the same handle counts as a new one. Not needed before a stream is destroyed,
 *  unless `streams_forgotten` of the options promises it. Requires: no live block has this
 *  stream. */
VMM_API vmm_status vmm_manager_forget_stream(vmm_manager* manager, vmm_stream stream) VMM_NOEXCEPT;

/** Blocks until the work of the memory's earlier users has finished, so that the host may access
 *  the block's bytes. Errors: as vmm_manager_free, IN_USE (suspended), driver errors. */
VMM_API vmm_status vmm_manager_synchronize(vmm_manager* manager, void* at) VMM_NOEXCEPT;

/** The record of one block of a manager. */
typedef struct vmm_block_info {
  uint64_t struct_size;
  void* base;
  uint64_t user_bytes;     /* the requested size; 0: its memory is lost */
  uint64_t mapped_bytes;   /* bytes with physical memory */
  uint64_t reserved_bytes; /* bytes of address space */
  vmm_stream stream;
  uint64_t handle_count; /* physical handles */
} vmm_block_info;

/** Requires: info->struct_size is set. Effects: describes the block that contains `at`. Errors:
 *  UNKNOWN_ADDRESS, NOT_ALLOCATED, OUT_OF_HOST_MEMORY. */
VMM_API vmm_status vmm_manager_find(vmm_manager* manager, const void* at,
                                    vmm_block_info* info) VMM_NOEXCEPT;

/** As vmm_pool_trim, for retained memory. */
VMM_API vmm_status vmm_manager_trim(vmm_manager* manager, uint64_t limit_bytes,
                                    vmm_trim_report* report) VMM_NOEXCEPT;

/** Figures of a manager. */
typedef struct vmm_manager_statistics {
  uint64_t struct_size;
  uint64_t granularity_bytes; /* sizes are multiples of it */
  uint64_t live_count;
  uint64_t user_bytes;   /* as requested, of live blocks */
  uint64_t mapped_bytes; /* behind live blocks; an aliased handle counts at each address */
  uint64_t held_bytes;   /* physical memory created and not released */
  uint64_t peak_held_bytes;
  uint64_t retained_bytes;        /* held and free for any request */
  uint64_t retained_mapped_bytes; /* held, mapped, and free for requests of its size */
  uint64_t retired_bytes;         /* addresses that wait for unfinished work */
  uint64_t reserved_bytes;        /* addresses reserved */
  uint64_t space_live_bytes;      /* addresses handed out */
  uint64_t space_high_water_bytes;
  uint64_t created_count; /* handles created */
  uint64_t reused_handle_count;
  uint64_t reused_range_count;
  uint64_t grown_reuse_count; /* requests served by a retained range that was grown */
  uint64_t unbound_range_count;
  uint64_t remapped_copy_count;
  uint64_t real_copy_count;
  uint64_t recovery_count;  /* times that retained memory was released, since memory was short */
  uint64_t suspended_bytes; /* of mapped_bytes, each byte once: released until resumed */
  uint64_t refused_unmap_count; /* unmaps of unused ranges that the driver refused */
} vmm_manager_statistics;

/** Requires: statistics->struct_size is set. Cost: O(1). */
VMM_API vmm_status vmm_manager_get_statistics(vmm_manager* manager,
                                              vmm_manager_statistics* statistics) VMM_NOEXCEPT;

enum {
  VMM_EXTENT_LIVE = 0,     /* a block */
  VMM_EXTENT_RETAINED = 1, /* mapped, free for requests of its size */
  VMM_EXTENT_RETIRED = 2,  /* waits for unfinished work */
  VMM_EXTENT_HOLE = 3      /* addresses without memory */
};

/** The element of an array: it never grows. */
typedef struct vmm_extent {
  void* base;
  uint64_t size_bytes;
  uint64_t mapped_bytes;
  uint32_t kind;        /* VMM_EXTENT_* */
  uint32_t reserved[3]; /* 0 */
} vmm_extent;

/** As vmm_pool_regions: the address space up to the last extent in use. Cost: O(extents). */
VMM_API vmm_status vmm_manager_extents(vmm_manager* manager, vmm_extent* extents, uint64_t capacity,
                                       uint64_t* count) VMM_NOEXCEPT;

/** Checks every invariant of every part. Errors: INTERNAL (one is broken). Requires: no other
 *  thread changes anything meanwhile. Cost: O(everything). */
VMM_API vmm_status vmm_manager_validate(vmm_manager* manager) VMM_NOEXCEPT;

/* ---- growable ranges ------------------------------------------------------------------------- */

/** Segments of a manager's memory that reserve addresses for their maximum size and commit memory
 *  as they grow, such as a key-value cache with a segment for each layer. Addresses never change.
 *  docs/manager.md has an example. Calls on one range wait for each other. */
typedef struct vmm_growable vmm_growable;

/** As few physical handles as the available memory allows. */
#define VMM_GROWABLE_FEW_HANDLES UINT64_MAX

/** The layout of a range, for its life. Zero: the default, except of segment_bytes_max. */
typedef struct vmm_growable_options {
  uint64_t struct_size;
  uint64_t segment_bytes_max; /* the maximum size of each segment; required */
  uint64_t segment_count;     /* 1 */
  uint64_t handle_bytes; /* of each physical handle, a multiple of the granularity; 0: one granule;
                           VMM_GROWABLE_FEW_HANDLES. A segment grows and shrinks by whole handles */
  uint32_t keep_dirty;   /* 1: bytes that a growth adds are not zeroed: 0 */
  uint32_t gives_tail;   /* 1: from a pin until the next growth, other tenants of an owner that need
                           memory get what is behind all pins, and sizes shrink: 0 */
} vmm_growable_options;

/** Requires: struct_size is sizeof(vmm_growable_options). Effects: *options gets the defaults. */
VMM_API vmm_status vmm_growable_options_init(vmm_growable_options* options,
                                             uint64_t struct_size) VMM_NOEXCEPT;

/** Reserves a range in a manager, which cannot be destroyed before the range. Creates no memory.
 *  Errors: BAD_OPTION, OUT_OF_ADDRESSES, NOT_SUPPORTED (zeros on a driver that cannot fill),
 *  OUT_OF_HOST_MEMORY, driver errors. Cost: O(segments). */
VMM_API VMM_CHECKED vmm_status vmm_growable_create(vmm_manager* manager,
                                                   const vmm_growable_options* options,
                                                   vmm_growable** growable) VMM_NOEXCEPT;

/** Releases memory and addresses after the work submitted to the stream so far, without waiting.
 *  NULL: nothing. Requires: other streams that use the range are ordered before this one. Errors:
 *  IN_USE (a pin, or another thread's call), driver errors; the range is as before. */
VMM_API vmm_status vmm_growable_destroy(vmm_growable* growable, vmm_stream last_use) VMM_NOEXCEPT;

/** The permitted directions of a resize. */
enum {
  VMM_GROWABLE_ANY = 0,   /* either */
  VMM_GROWABLE_GROW = 1,  /* a segment that is larger is an error */
  VMM_GROWABLE_SHRINK = 2 /* a segment that is smaller is an error */
};

/** A request to resize. Sizes are in bytes. */
typedef struct vmm_growable_request {
  uint64_t struct_size;
  uint64_t size_bytes;    /* of each segment named; 0 releases its memory */
  uint64_t first_segment; /* the segments named */
  uint64_t segment_count; /* 0: all of them */
  vmm_stream stream;      /* the stream that uses added bytes, and has used removed ones */
  uint32_t change;        /* VMM_GROWABLE_* */
  uint32_t one_handle;    /* 1: one handle for all of a segment, which is empty before */
  uint32_t no_wait;       /* 1: IN_USE instead of a wait for work at released addresses */
  uint32_t reserved;      /* 0 */
} vmm_growable_request;

/** Sets the size of each segment named; on failure of none. Bytes below both sizes keep their
 *  contents; added bytes are zero, by a fill on the stream. Removed memory serves the manager's
 *  other ranges and blocks, and is unmapped once the stream's work so far has finished.
 *  Requires: other streams are ordered behind this one before they use added bytes, and before it
 *  when bytes are removed. The stream is not being captured.
 *  Errors: INVALID_ARGUMENT (beyond the maximum, no such segment, a direction other than requested,
 *  one_handle for a segment that has memory), IN_USE (a pin covers bytes that would go; no_wait),
 *  OUT_OF_MEMORY, OVER_BUDGET, OUT_OF_MAPPINGS, OUT_OF_HOST_MEMORY, driver errors.
 *  Cost: docs/manager.md. Blocks if memory is short and the manager's options allow it, and to
 *  grow over released addresses that unfinished work may still use. */
VMM_API VMM_CHECKED vmm_status
vmm_growable_resize(vmm_growable* growable, const vmm_growable_request* request) VMM_NOEXCEPT;

/** Blocks until the work of the memory's earlier users, and all work submitted to the stream, have
 *  finished, so that the host may access the bytes. Errors: driver errors. */
VMM_API vmm_status vmm_growable_synchronize(vmm_growable* growable, vmm_stream stream) VMM_NOEXCEPT;

/** Figures of a range. Sizes are in bytes. */
typedef struct vmm_growable_info {
  uint64_t struct_size;
  void* base; /* of the first segment; the others follow at steps of stride_bytes */
  uint64_t segment_count;
  uint64_t segment_bytes_max;
  uint64_t stride_bytes;
  uint64_t handle_bytes;   /* sizes are rounded up to it */
  uint64_t size_bytes;     /* of all segments together */
  uint64_t physical_bytes; /* mapped behind them */
  uint64_t handle_count;
  uint64_t pin_count;
} vmm_growable_info;

/** Requires: info->struct_size is set. Cost: O(segments). */
VMM_API vmm_status vmm_growable_query(vmm_growable* growable, vmm_growable_info* info) VMM_NOEXCEPT;

/** The address and size of a segment. Errors: INVALID_ARGUMENT (no such segment). */
VMM_API vmm_status vmm_growable_segment(vmm_growable* growable, uint64_t index, void** base,
                                        uint64_t* size_bytes) VMM_NOEXCEPT;

/** The element of an array: it never grows. */
typedef struct vmm_growable_part {
  uint64_t handle; /* the driver's (a CUmemGenericAllocationHandle): not to be released */
  uint64_t size_bytes;
} vmm_growable_part;

/** The physical handles behind a segment, in address order: for code that registers memory.
 *  Effects: *count becomes their number; the first `capacity` are written to `parts`, which may be
 *  NULL when `capacity` is 0. They change with the next resize. Errors: as vmm_growable_segment,
 *  OUT_OF_HOST_MEMORY. */
VMM_API vmm_status vmm_growable_parts(vmm_growable* growable, uint64_t index,
                                      vmm_growable_part* parts, uint64_t capacity,
                                      uint64_t* count) VMM_NOEXCEPT;

/** Pins at least `size_bytes` of each segment named (a count of 0: all): until vmm_growable_unpin()
 *  of the number, a resize below that and vmm_growable_destroy() return IN_USE. With 0 bytes only
 *  the addresses are pinned. Errors: INVALID_ARGUMENT (more bytes than a segment has, no
 *  such segment), OUT_OF_HOST_MEMORY. */
VMM_API vmm_status vmm_growable_pin(vmm_growable* growable, uint64_t size_bytes,
                                    uint64_t first_segment, uint64_t segment_count,
                                    uint64_t* pin) VMM_NOEXCEPT;
/** Errors: INVALID_ARGUMENT (no pin of this number). */
VMM_API vmm_status vmm_growable_unpin(vmm_growable* growable, uint64_t pin) VMM_NOEXCEPT;

/** Checks every invariant of the range. Errors: INTERNAL (one is broken). */
VMM_API vmm_status vmm_growable_validate(vmm_growable* growable) VMM_NOEXCEPT;

/* ---- suspend and resume ---------------------------------------------------------------------- */

/** Releases the physical memory of pools and managers to the driver for a while, and maps new
 *  memory at the same addresses. A pool or manager with a tag is a region; several may have one
 *  tag. docs/suspend.md has an example. Calls on one suspender wait for each other. */
typedef struct vmm_suspender vmm_suspender;

/** The contents of a region's blocks after it was resumed. */
enum {
  VMM_CONTENTS_KEEP = 0,   /* the old contents */
  VMM_CONTENTS_ZERO = 1,   /* zero */
  VMM_CONTENTS_DISCARD = 2 /* unspecified */
};

/** The place of kept contents. */
enum {
  VMM_BACKUP_BEST = 0,     /* pinned if the driver has it, else pageable */
  VMM_BACKUP_PINNED = 1,   /* host memory that the device copies to and from */
  VMM_BACKUP_PAGEABLE = 2, /* memory of the process */
  VMM_BACKUP_FILE = 3      /* a file without a name */
};

/** Options of a suspender. Zero: the defaults. */
typedef struct vmm_suspender_options {
  uint64_t struct_size;
  const char* directory; /* of VMM_BACKUP_FILE; NULL: the environment's TMPDIR, or /tmp */
  uint32_t tier;         /* VMM_BACKUP_* */
  uint32_t verify;       /* 1: each resume checks contents, and poisons discarded ones */
} vmm_suspender_options;

/** Requires: struct_size is sizeof(vmm_suspender_options). Effects: *options gets the defaults. */
VMM_API vmm_status vmm_suspender_options_init(vmm_suspender_options* options,
                                              uint64_t struct_size) VMM_NOEXCEPT;

/** NULL options: the defaults. Errors: BAD_OPTION (a directory that takes no file, too),
 *  UNAVAILABLE (its disk fails), OUT_OF_HOST_MEMORY. In a remap callback every later call on a
 *  suspender returns NOT_PERMITTED. */
VMM_API VMM_CHECKED vmm_status vmm_suspender_create(const vmm_suspender_options* options,
                                                    vmm_suspender** suspender) VMM_NOEXCEPT;
/** NULL is not an error. Kept contents of suspended regions are lost. Their blocks can be freed,
 *  and their pools and managers destroyed, or added to another suspender. */
VMM_API vmm_status vmm_suspender_destroy(vmm_suspender* suspender) VMM_NOEXCEPT;
/** The same, unless contents of suspended memory are kept and lose_contents is 0: one decision,
 *  without another thread's call in between. Errors: IN_USE (kept contents; a call that has not
 *  returned), INVALID_ARGUMENT (lose_contents is neither 0 nor 1); the suspender is as before. */
VMM_API VMM_CHECKED vmm_status vmm_suspender_close(vmm_suspender* suspender,
                                                   uint32_t lose_contents) VMM_NOEXCEPT;

/** Makes the pool a region. It cannot be destroyed before it is removed or the suspender is
 *  destroyed. One that another suspender's end has left suspended is suspended here; resume it with
 *  the contents that were promised then. Lost ones are IN_USE until their blocks are freed. The tag
 *  is any text; contents is one of VMM_CONTENTS_*. Errors: INVALID_ARGUMENT (an empty tag), IN_USE
 *  (it is one already), NOT_SUPPORTED (the driver cannot copy), OUT_OF_HOST_MEMORY. */
VMM_API vmm_status vmm_suspender_add_pool(vmm_suspender* suspender, vmm_pool* pool, const char* tag,
                                          uint32_t contents) VMM_NOEXCEPT;
/** The same for a manager. */
VMM_API vmm_status vmm_suspender_add_manager(vmm_suspender* suspender, vmm_manager* manager,
                                             const char* tag, uint32_t contents) VMM_NOEXCEPT;
/** Errors: IN_USE (the region is suspended), INVALID_ARGUMENT (it is not a region). */
VMM_API vmm_status vmm_suspender_remove_pool(vmm_suspender* suspender, vmm_pool* pool) VMM_NOEXCEPT;
/** The same for a manager. */
VMM_API vmm_status vmm_suspender_remove_manager(vmm_suspender* suspender,
                                                vmm_manager* manager) VMM_NOEXCEPT;

/** A request to suspend. Zero: every region that is not suspended. */
typedef struct vmm_suspend_request {
  uint64_t struct_size;
  const char* const* tags;   /* may be NULL when tag_count is 0 */
  uint64_t tag_count;        /* 0: every region that is not suspended */
  const vmm_stream* streams; /* further streams that use the memory, not passed to the regions */
  uint64_t stream_count;
  uint32_t use_contents; /* 1: `contents` replaces the regions' own in this call */
  uint32_t contents;     /* VMM_CONTENTS_* */
} vmm_suspend_request;

/** The memory that a suspension released and retained. */
typedef struct vmm_suspend_report {
  uint64_t struct_size;
  uint64_t suspended_bytes; /* memory of live blocks, released to the driver */
  uint64_t backup_bytes;    /* contents kept */
  uint64_t region_count;
  uint64_t refused_bytes;    /* not released by the driver: the next resume maps them again */
  uint64_t cached_bytes;     /* the same, of free memory */
  uint64_t unfinished_bytes; /* wait for work, or belong to blocks that are being allocated */
  uint64_t reserved;         /* 0 */
} vmm_suspend_report;

/** Requires: until vmm_suspender_resume() has returned, no work that uses the regions' memory is
 *  submitted, and no captured graph over it is launched.
 *  Effects: waits for all work of the device, or, with streams_forgotten, for that of the regions'
 *  streams and of the request's; then releases the regions' physical memory to the driver. Their
 *  blocks can be freed; every other call that needs their memory returns IN_USE. All regions or
 *  none. `request` and `report` may be NULL.
 *  Errors: INVALID_ARGUMENT (a tag that no region has, an invalid stream), IN_USE (suspended
 *  already; a block is pinned, exported, a growable range's, being changed, or shares its memory; a
 *  stream is captured), NOT_PERMITTED (contents that the driver's device must not read, or inside a
 *  callback), NOT_SUPPORTED (no pinned memory), BAD_OPTION (the directory of the options takes no
 *  file), UNAVAILABLE (its disk fails), OUT_OF_HOST_MEMORY, driver errors.
 *  Cost: docs/suspend.md. */
VMM_API VMM_CHECKED vmm_status vmm_suspender_suspend(vmm_suspender* suspender,
                                                     const vmm_suspend_request* request,
                                                     vmm_suspend_report* report) VMM_NOEXCEPT;
/** Requires: as vmm_suspender_suspend(), from this call on. Effects: the regions with the tags, or
 *  all, may be suspended on another thread when other tenants of an owner need memory. The resume
 *  of a region ends its offer, also if it is not suspended. Errors: INVALID_ARGUMENT (a tag that no
 *  region has). */
VMM_API VMM_CHECKED vmm_status vmm_suspender_offer(vmm_suspender* suspender,
                                                   const char* const* tags,
                                                   uint64_t tag_count) VMM_NOEXCEPT;
/** Restores the memory at the same addresses, with the promised contents and all access. Without
 *  tags: every region that is suspended. Errors: INVALID_ARGUMENT (a tag that no region has, or not
 *  suspended or offered), IN_USE (another thread frees a block; there are none, but another
 *  suspender has suspended a region), OUT_OF_MEMORY, OVER_BUDGET, INTERNAL (verify: other contents
 *  than promised), driver errors; all stay suspended, and a later call retries. */
VMM_API VMM_CHECKED vmm_status vmm_suspender_resume(vmm_suspender* suspender,
                                                    const char* const* tags,
                                                    uint64_t tag_count) VMM_NOEXCEPT;

/** The state of a suspender. */
typedef struct vmm_suspender_info {
  uint64_t struct_size;
  uint64_t backup_bytes; /* of all backups, unused ones included */
  const char* obstacle;  /* the tag of the region at which the last call failed, or "";
                             until the thread's next vmm_suspender_query() */
  uint32_t is_suspended; /* 1: the region with the queried tag is */
  uint32_t reserved;     /* 0 */
} vmm_suspender_info;

/** Requires: info->struct_size is set. Effects: fills *info; `tag` may be NULL. Errors:
 *  INVALID_ARGUMENT (a tag that no region has), OUT_OF_HOST_MEMORY. */
VMM_API vmm_status vmm_suspender_query(vmm_suspender* suspender, const char* tag,
                                       vmm_suspender_info* info) VMM_NOEXCEPT;
/** Copies kept contents of suspended memory at `from` to host memory.
 *  Errors: UNKNOWN_ADDRESS (any of the bytes is not kept), driver errors; `into` may be changed. */
VMM_API VMM_CHECKED vmm_status vmm_suspender_read_backup(vmm_suspender* suspender, void* into,
                                                         const void* from,
                                                         uint64_t size_bytes) VMM_NOEXCEPT;
/** Releases unused backups. Errors: driver errors; a later call tries again. */
VMM_API vmm_status vmm_suspender_return_backups(vmm_suspender* suspender) VMM_NOEXCEPT;

/* ---- several devices ------------------------------------------------------------------------- */

/** Access of a location to memory. It limits kernels, and not copies that CUDA's driver makes:
 *  docs/multi_device.md. */
enum { VMM_RIGHTS_NONE = 0, VMM_RIGHTS_READ = 1, VMM_RIGHTS_READ_WRITE = 2 };

/** The maximum number of locations in one list of rights. */
#define VMM_GRANTS_MAX 18

/** The rights of one location. The element of an array: it never grows. */
typedef struct vmm_grant {
  uint32_t place;    /* VMM_PLACE_* */
  int32_t device;    /* the device's or the node's number; 0 for the host */
  uint32_t rights;   /* VMM_RIGHTS_* */
  uint32_t reserved; /* 0 */
} vmm_grant;

/** The link between two devices. */
enum {
  VMM_LINK_NONE = 0,   /* the device cannot have rights to the other's memory */
  VMM_LINK_ITSELF = 1, /* both are one device */
  VMM_LINK_PEER = 2    /* the device can have rights to the other's memory */
};
enum { VMM_LINK_ATOMICS = 1 << 0 }; /* atomic operations work across the link */

/** Whether kernels of device `from` can have rights to memory of device `to`. Effects: fills
 *  *link with one of VMM_LINK_* and *flags, which may be NULL, with bits. Errors: INVALID_ARGUMENT
 *  (no such device), NOT_SUPPORTED. Cost: a driver call. */
VMM_API vmm_status vmm_driver_query_peer(vmm_driver* driver, int32_t from, int32_t to,
                                         uint32_t* link, uint32_t* flags) VMM_NOEXCEPT;

/** The rights of a location at an address. Errors: INVALID_ARGUMENT (nothing is mapped there, no
 *  such location). Cost: a driver call. */
VMM_API vmm_status vmm_driver_get_access(vmm_driver* driver, const void* at, uint32_t place,
                                         int32_t device, uint32_t* rights) VMM_NOEXCEPT;

/** Set the rights of several locations in one call: to one block, to all blocks of a manager, or to
 *  all memory of a pool; now and later, wherever it moves. Rights to a block overrule those to all.
 *  Requires: work of a location that loses access has finished. Errors: INVALID_ARGUMENT (no
 *  grants, more than VMM_GRANTS_MAX, an invalid location; for all memory, the driver's own device
 *  or the memory's place), NOT_SUPPORTED (out of reach), IN_USE (another thread is changing a block
 *  of the manager), those of vmm_manager_free, driver errors; nothing is changed. Cost: a driver
 *  call for each mapping. */
VMM_API vmm_status vmm_manager_set_access(vmm_manager* manager, void* at, const vmm_grant* grants,
                                          uint64_t count) VMM_NOEXCEPT;
VMM_API vmm_status vmm_manager_set_peers(vmm_manager* manager, const vmm_grant* grants,
                                         uint64_t count) VMM_NOEXCEPT;
/** vmm_manager_set_access() for a part of a block that begins and ends with mappings of it
 *  (vmm_manager_parts). The rights start as those of the block, and stay while the block grows,
 *  moves and is suspended; a shrink ends those of the bytes it removes. A copy onto the block
 *  copies bytes. Errors: as there; INVALID_ARGUMENT (not inside one block), NOT_SUPPORTED (a border
 *  inside a mapping); nothing is changed. */
VMM_API vmm_status vmm_manager_set_part_access(vmm_manager* manager, void* at, uint64_t size_bytes,
                                               const vmm_grant* grants,
                                               uint64_t count) VMM_NOEXCEPT;
/** The mappings of the block that contains `at`, in address order, as vmm_growable_parts() returns
 *  those of a segment. They change with a resize or a copy by remapping. Errors:
 *  UNKNOWN_ADDRESS, NOT_ALLOCATED, IN_USE (suspended), OUT_OF_HOST_MEMORY. */
VMM_API vmm_status vmm_manager_parts(vmm_manager* manager, void* at, vmm_growable_part* parts,
                                     uint64_t capacity, uint64_t* count) VMM_NOEXCEPT;
VMM_API vmm_status vmm_pool_set_peers(vmm_pool* pool, const vmm_grant* grants,
                                      uint64_t count) VMM_NOEXCEPT;

/** vmm_pool_allocate() of a block that shares no mapping with others, so that it can have rights of
 *  its own, in whole pages. Errors: as
 *  vmm_pool_allocate. Cost: driver calls; releases free memory of the pool to the driver if no
 *  other memory is left. */
VMM_API VMM_CHECKED vmm_status vmm_pool_allocate_dedicated(vmm_pool* pool, uint64_t size_bytes,
                                                           vmm_stream stream,
                                                           void** at) VMM_NOEXCEPT;
/** Rights of several locations to one block of a pool, until it is freed, through suspension and
 *  resumption; they overrule those of vmm_pool_set_peers(). Free the block on a stream that is not
 *  captured. Its memory is reused only after that stream's work has finished and a later call that
 *  grows or trims the pool has removed the access: free such blocks seldom. Requires: work of a
 *  location that loses access has finished with the block.
 *  Errors: INVALID_ARGUMENT (no grants, more than VMM_GRANTS_MAX, an invalid location, the driver's
 *  own device or the memory's own; `at` is inside a block), UNKNOWN_ADDRESS, NOT_ALLOCATED (freed
 *  before), NOT_SUPPORTED (out of reach; the block shares a mapping: see
 *  vmm_pool_allocate_dedicated), IN_USE (the pool is suspended), NOT_PERMITTED (a captured graph's,
 *  or in a callback), OUT_OF_HOST_MEMORY, driver errors; nothing is changed. Cost: a driver call
 *  for each mapping of the block. */
VMM_API vmm_status vmm_pool_set_access(vmm_pool* pool, void* at, const vmm_grant* grants,
                                       uint64_t count) VMM_NOEXCEPT;

/* ---- sharing with other processes ------------------------------------------------------------ */

/** Memory lent to other processes and borrowed from them: docs/sharing.md. The receiver of a block
 *  may read and write it. When a connection ends, blocks lent on it count as returned. Calls on one
 *  channel or block wait for each other. */
typedef struct vmm_listener vmm_listener; /* a socket at a path */
typedef struct vmm_channel vmm_channel;   /* a connection to one peer */
typedef struct vmm_export vmm_export;     /* a block that can be lent */
typedef struct vmm_import vmm_import;     /* a block of another process */

/** The size of a secret. */
#define VMM_SHARE_SECRET_BYTES 32

/** Creates a secret of 32 random bytes, which both sides need. Errors: UNAVAILABLE. */
VMM_API vmm_status vmm_share_make_secret(uint8_t* secret) VMM_NOEXCEPT;
/** Reads a secret from a file of 32 bytes and mode 0600 of this user, not a symbolic link. Errors:
 *  NOT_PERMITTED, INVALID_ARGUMENT (its size), UNAVAILABLE. */
VMM_API vmm_status vmm_share_read_secret(const char* path, uint8_t* secret) VMM_NOEXCEPT;

/** A channel's check of its peer, and its timeout. */
typedef struct vmm_share_options {
  uint64_t struct_size;
  uint8_t secret[VMM_SHARE_SECRET_BYTES];
  uint32_t timeout_ms; /* of each wait for the peer; 0: no wait, in vmm_share_accept alone */
  uint32_t reserved;   /* 0 */
} vmm_share_options;

/** Effects: *options gets the default timeout, 1000 ms. The caller sets the secret. */
VMM_API vmm_status vmm_share_options_init(vmm_share_options* options,
                                          uint64_t struct_size) VMM_NOEXCEPT;

/** A socket at a path in a directory of this user with mode 0700. Errors: NOT_PERMITTED (the
 *  directory), IN_USE (the name is taken), INVALID_ARGUMENT (the name), UNAVAILABLE. */
VMM_API VMM_CHECKED vmm_status vmm_share_listen(const char* path,
                                                vmm_listener** listener) VMM_NOEXCEPT;
/** Waits for a connection and for the peer's proof. Errors: UNAVAILABLE (timeout), NOT_PERMITTED
 *  (another user, or another secret), FOREIGN (a peer with another protocol). */
VMM_API VMM_CHECKED vmm_status vmm_share_accept(vmm_listener* listener,
                                                const vmm_share_options* options,
                                                vmm_channel** channel) VMM_NOEXCEPT;
/** Closes the socket and removes its name. Other threads' calls on it end: those that wait fail
 *  with UNAVAILABLE. NULL: nothing. Errors: IN_USE (one goes on for 10 s). */
VMM_API vmm_status vmm_share_stop(vmm_listener* listener) VMM_NOEXCEPT;
/** Connects to such a path. Errors: as vmm_share_listen and vmm_share_accept; INVALID_ARGUMENT (a
 *  timeout of 0). */
VMM_API VMM_CHECKED vmm_status vmm_share_connect(const char* path, const vmm_share_options* options,
                                                 vmm_channel** channel) VMM_NOEXCEPT;
/** Makes a channel of a connected Unix socket of type SOCK_SEQPACKET, which the library owns after
 *  success. On failure the descriptor stays the caller's; a connection that sent its greeting has
 *  ended. One end has `accepts` 1, the other 0. Errors: as vmm_share_connect. */
VMM_API VMM_CHECKED vmm_status vmm_share_adopt(int32_t descriptor, uint32_t accepts,
                                               const vmm_share_options* options,
                                               vmm_channel** channel) VMM_NOEXCEPT;
/** Ends the connection, and other threads' calls on it as vmm_share_stop. NULL: nothing. */
VMM_API vmm_status vmm_share_close(vmm_channel* channel) VMM_NOEXCEPT;
/** A descriptor for poll(), readable when vmm_share_next() would return at once; -1 once the
 *  connection has ended. */
VMM_API vmm_status vmm_share_descriptor(vmm_channel* channel, int32_t* descriptor) VMM_NOEXCEPT;

/** Memory to lend: memory of its own, or a manager's block. */
typedef struct vmm_export_request {
  uint64_t struct_size;
  uint64_t size_bytes;   /* of memory of its own; 0 for a manager's block */
  uint64_t handle_bytes; /* 0: one handle; else handles of this size */
  uint32_t kind;         /* VMM_SHARE_*; 0: VMM_SHARE_POSIX_FD */
  uint32_t followed;     /* 1: a manager's block may move: see vmm_share_moved */
  uint32_t one_handle;   /* 1: refuse a manager's block that has more than one handle */
  uint32_t reserved;     /* 0 */
  char label[32];        /* any bytes, for the importer */
} vmm_export_request;

/** Creates memory of its own to lend. Errors: INVALID_ARGUMENT, NOT_SUPPORTED, NOT_PERMITTED
 *  (fabric), driver errors. */
VMM_API VMM_CHECKED vmm_status vmm_share_export(vmm_driver* driver,
                                                const vmm_export_request* request,
                                                vmm_export** block) VMM_NOEXCEPT;
/** Exports a block of a manager whose options make its memory shareable. Until the export ends,
 *  freeing or resizing a block that is not followed returns IN_USE. Errors: as vmm_manager_free,
 *  NOT_SUPPORTED. */
VMM_API VMM_CHECKED vmm_status vmm_share_export_block(vmm_manager* manager, void* at,
                                                      const vmm_export_request* request,
                                                      vmm_export** block) VMM_NOEXCEPT;
/** Sets the address to which vmm_manager_resize moved a followed block; vmm_share_update sends
 *  it. */
VMM_API vmm_status vmm_share_moved(vmm_export* block, void* at) VMM_NOEXCEPT;

/** An exported or imported block. */
typedef struct vmm_shared_info {
  uint64_t struct_size;
  void* base;
  uint64_t size_bytes; /* whole granules */
  uint64_t id;         /* of an imported block: its number on the channel */
  uint64_t epoch;      /* of an imported block */
  uint64_t part_count; /* handles */
  uint32_t lent;       /* of an exported block: 1 while it is lent */
  uint32_t reserved;   /* 0 */
  char label[32];
} vmm_shared_info;

/** Requires: info->struct_size is set. Effects: fills *info. Cost: no driver call. */
VMM_API vmm_status vmm_share_query_export(vmm_export* block, vmm_shared_info* info) VMM_NOEXCEPT;
/** Ends an export and its memory. NULL: nothing. Errors: IN_USE (it is lent). */
VMM_API vmm_status vmm_share_end_export(vmm_export* block) VMM_NOEXCEPT;

/** Offers the block and waits for the reply. Errors: UNAVAILABLE (the peer is gone, or did not
 *  reply in time: the offer is withdrawn), the peer's reason if it refuses. */
VMM_API vmm_status vmm_share_lend(vmm_channel* channel, vmm_export* block,
                                  uint64_t* id) VMM_NOEXCEPT;
/** Notifies the peer that a followed block has changed. `epoch` may be NULL. */
VMM_API vmm_status vmm_share_update(vmm_channel* channel, uint64_t id,
                                    uint64_t* epoch) VMM_NOEXCEPT;
/** Withdraws a block and waits until it is released; a second call continues the wait. Errors:
 *  UNAVAILABLE. */
VMM_API vmm_status vmm_share_take_back(vmm_channel* channel, uint64_t id) VMM_NOEXCEPT;

enum {
  VMM_SHARE_OFFERED = 0,   /* vmm_share_borrow imports the block */
  VMM_SHARE_UPDATED = 1,   /* vmm_share_apply applies the change */
  VMM_SHARE_WITHDRAWN = 2, /* vmm_share_give_back is due */
  VMM_SHARE_ACCEPTED = 3,  /* the peer uses a block at `epoch` */
  VMM_SHARE_REFUSED = 4,   /* the peer refuses a block, for `reason` */
  VMM_SHARE_RELEASED = 5   /* the peer has given a block back */
};

/** A change that the peer made to one block. */
typedef struct vmm_share_event {
  uint64_t struct_size;
  uint64_t id;
  uint64_t epoch;
  uint32_t kind;     /* VMM_SHARE_OFFERED and so on */
  vmm_status reason; /* of a refusal */
} vmm_share_event;

/** Waits for the next event of the peer. Errors: UNAVAILABLE (none in time: native_name ETIMEDOUT;
 *  else the connection has ended), FOREIGN (the peer broke the protocol). */
VMM_API vmm_status vmm_share_next(vmm_channel* channel, uint32_t timeout_ms,
                                  vmm_share_event* event) VMM_NOEXCEPT;

/** The mapping of a peer's block in this process. */
typedef struct vmm_import_request {
  uint64_t struct_size;
  uint32_t read_only;  /* 1: this process only reads */
  uint32_t any_device; /* 1: accept another device number of the peer */
} vmm_import_request;

/** Waits for an offered block, imports, maps and accepts the oldest one; refuses it on failure.
 *  `request` may be NULL. Errors: UNAVAILABLE, FOREIGN (driver and peer describe the block
 *  differently), driver errors. */
VMM_API VMM_CHECKED vmm_status vmm_share_borrow(vmm_channel* channel, vmm_driver* driver,
                                                const vmm_import_request* request,
                                                vmm_import** block) VMM_NOEXCEPT;
/** Applies and accepts the last change that vmm_share_next returned; the block's address may
 *  change. Requires: no unfinished work uses the block. */
VMM_API vmm_status vmm_share_apply(vmm_channel* channel, vmm_import* block) VMM_NOEXCEPT;
VMM_API vmm_status vmm_share_query_import(vmm_import* block, vmm_shared_info* info) VMM_NOEXCEPT;
/** Releases the block's memory and notifies the peer; vmm_share_end_import ends the handle.
 *  Requires: no unfinished work uses it. Errors: UNAVAILABLE (the connection has ended; it is
 *  released), INVALID_ARGUMENT (it came by another channel). */
VMM_API vmm_status vmm_share_give_back(vmm_channel* channel, vmm_import* block) VMM_NOEXCEPT;
/** Releases the rest of the block and ends the handle. NULL: nothing. */
VMM_API vmm_status vmm_share_end_import(vmm_import* block) VMM_NOEXCEPT;

/* ---- history --------------------------------------------------------------------------------- */

/** Options of the history of a pool, a manager, or an allocator's device (docs/observe.md), which
 *  vmm-history and `./run view` show. `owner` is the handle of a vmm_pool, a vmm_manager or a
 *  vmm_allocator; `device` is 0 for the first two, and the device's number for an allocator, which
 *  opens it if it was not in use. While nothing is recorded a call on the owner costs one branch
 *  more. Not in a callback of the pool. */
typedef struct vmm_history_options {
  uint64_t struct_size;
  uint64_t event_count;        /* capacity in records, 33 bytes each: 2^18 */
  uint32_t clock_interval;     /* allocations and frees per reading of the clock: 32 */
  uint32_t shortage_count_max; /* most files written at shortages: 4 */
  const char* shortage_path; /* PATH.0 and so on are written before OUT_OF_MEMORY or OVER_BUDGET is
                                  returned; NULL: no file */
} vmm_history_options;

/** Requires: struct_size is sizeof(vmm_history_options). Effects: *options gets the defaults. */
VMM_API vmm_status vmm_history_options_init(vmm_history_options* options,
                                            uint64_t struct_size) VMM_NOEXCEPT;
/** Begins to record the owner's events. `options` may be NULL. Errors: IN_USE (it is recorded
 *  already), BAD_OPTION, INVALID_ARGUMENT (a device but 0 of a pool or manager),
 *  OUT_OF_HOST_MEMORY. */
VMM_API vmm_status vmm_history_start(const void* owner, int32_t device,
                                     const vmm_history_options* options) VMM_NOEXCEPT;
/** Writes the recording so far, and the present layout, to the file at `path`. Errors:
 *  INVALID_ARGUMENT (nothing is recorded), OUT_OF_HOST_MEMORY, UNAVAILABLE (the file cannot be
 *  written; with the system's code). Cost: O(events); other calls on the owner do not wait. */
VMM_API vmm_status vmm_history_dump(const void* owner, int32_t device,
                                    const char* path) VMM_NOEXCEPT;
/** vmm_history_dump(), and ends the recording, even if the file cannot be written. `path` may be
 *  NULL: nothing is written. */
VMM_API vmm_status vmm_history_stop(const void* owner, int32_t device,
                                    const char* path) VMM_NOEXCEPT;

/** The number of a tag's name, one for each name, up to 65,535; and of a line of a program, up to
 *  2^20. Errors: OUT_OF_HOST_MEMORY (beyond these). Cost: a lookup. */
VMM_API vmm_status vmm_history_tag(const char* name, uint32_t* number) VMM_NOEXCEPT;
VMM_API vmm_status vmm_history_line(const char* file, uint32_t line, const char* function,
                                    uint32_t* number) VMM_NOEXCEPT;
/** Gives the calling thread's later allocations and frees this tag and line in each history; 0:
 *  none. The previous values are written to `tag_before` and `line_before`, which may be NULL.
 *  Errors: INVALID_ARGUMENT (no such number). Cost: some nanoseconds. */
VMM_API vmm_status vmm_history_label(uint32_t tag, uint32_t line, uint32_t* tag_before,
                                     uint32_t* line_before) VMM_NOEXCEPT;

/** 1 publishes pools and managers that are created later to vmm-top, as VMM_TOP=1 does; 0 stops
 *  that. Their figures are written four times a second to a file in XDG_RUNTIME_DIR, or in /tmp,
 *  that this user alone may read. Errors: INVALID_ARGUMENT (another number). */
VMM_API vmm_status vmm_top_publish(uint32_t on) VMM_NOEXCEPT;

/* ---- in a process of Python ------------------------------------------------------------------ */

/** The thread, Python's main one by its identity, runs handlers of signals inside calls that wait
 *  for a peer or, except on a vmm_allocator, for an owner of memory, at least ten times a second.
 *  Where a handler raises, the call fails as at its timeout; one of sharing or of vmm_driver_open
 *  with native_name EINTR. 0: none does. Errors: NOT_SUPPORTED (the process has no interpreter).
 *  Thread safety: any. */
VMM_API vmm_status vmm_python_run_handlers(uint64_t thread) VMM_NOEXCEPT;
/** Raises that exception in Python, whose lock the caller has. Without one: nothing. */
VMM_API void vmm_python_raise(void) VMM_NOEXCEPT;

/** Of vmm_python_on_tensor_end(). */
typedef void (*vmm_python_ended)(uint64_t number, uint32_t* is_done);
/** `ended` is called with the number of each tensor whose deleter is vmm_python_end_tensor(): with
 *  Python's lock, in any thread, without a pending exception; one that was pending is restored. It
 *  sets *is_done to 1; if an exception, such as that of a signal's handler, leaves it before, it is
 *  called again. NULL, for the end of the interpreter, ends these calls and those of
 *  vmm_python_remapped(), and waits up to 5 s for the latter. Errors: NOT_SUPPORTED (the
 *  process has no interpreter). Thread safety: any. */
VMM_API vmm_status vmm_python_on_tensor_end(vmm_python_ended ended) VMM_NOEXCEPT;
/** A vmm_remap_callback that calls its context, a function of that type made of Python code, with
 *  NULL as context. */
VMM_API void vmm_python_remapped(void* callback, const vmm_remap_notice* notice);
/* At the interpreter's end Python unwinds threads that wait for its lock: the two functions below
 * let that pass. */
/** The deleter of a DLManagedTensor or DLManagedTensorVersioned. Requires: the eight bytes before
 *  it are its number. */
VMM_API void vmm_python_end_tensor(void* tensor);
/** The destructor of a PyCapsule with such a tensor, which it ends unless a consumer has renamed
 *  the capsule. NULL: nothing. */
VMM_API void vmm_python_end_capsule(void* capsule);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* VMM_H */
