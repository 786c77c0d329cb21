// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.base:files - files whose names come from users and variables, and the texts of their
// failures. For vmm's own modules and programs.
//
// named_file.h says which files are opened: none that waits.
//
// Thread safety: all of it. open_named() may be called in a signal handler.
export module vmm.base:files;

import vmm.std;

namespace vmm {

/// A descriptor, or the system's code and -1.
export struct opened_file {
  int descriptor = -1;
  int failure = 0;
};
/// open() with `flags` of the system, and O_CLOEXEC and O_NOCTTY; reads and writes wait as usual. A
/// folder is EISDIR.
export [[nodiscard]] opened_file open_named(const char* path, int flags,
                                            unsigned mode = 0666) noexcept;

/// A library that dlopen() has loaded, at once and with names of its own, or null and the reason.
export struct loaded_library {
  void* handle = nullptr;
  const char* reason = nullptr;  ///< valid until the thread's next call of the loader
};
/// A path that is not one of a regular file is refused, and a name that is a named pipe in a folder
/// of LD_LIBRARY_PATH: the loader would wait.
export [[nodiscard]] loaded_library load_named(const char* name) noexcept;

/// The name of a code of the system's, such as "EMFILE"; "errno" for a rare one, "" for 0.
export [[nodiscard]] const char* errno_name(int failure) noexcept;
/// The limit that a call has met (EMFILE, ENFILE, EFBIG, ENOSPC, EDQUOT), with its figure, or the
/// kind of file that open_named() refuses (ENXIO), and the remedy; null for other codes. The texts
/// are kept (:texts).
export [[nodiscard]] const char* limit_text(int failure) noexcept;
/// The same; else what is wrong with a file's path; else `otherwise`.
export [[nodiscard]] const char* file_text(int failure, const char* otherwise) noexcept;

}  // namespace vmm
