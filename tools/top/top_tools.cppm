// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.top_tools - what the allocators of the user's running processes have, read from the files
// that vmm.observe:top publishes.
//
// - A file is read only in a folder that is private to the user, and only if it is a regular file
//   of the user, of the one size, unreadable to others, whose head is of its process.
// - A sample is shown only if its slot was not written while it was read.
// - The file of a dead process is removed; nothing else is changed.
// - A text of a file is shown as plain ASCII: nothing of it reaches the terminal as a command.
//
// Thread safety: values only. Cost: some system calls for each file.
export module vmm.top_tools;

export import vmm.observe;
import vmm.backend;
import vmm.std;

namespace vmm::tools {

/// A process with what its allocators have.
export struct top_process {
  std::uint64_t process = 0;
  std::string program{};
  std::uint64_t hidden_count = 0;  ///< allocators that it has no room to show
  std::uint64_t busy_count = 0;    ///< allocators whose slots were written whenever they were read
  std::vector<top_sample> allocators{};
};
export struct top_listing {
  std::vector<top_process> processes{};   ///< by number
  std::vector<std::string> complaints{};  ///< files and folders that were refused, with the reason
};

/// Adds the files of the folder. A missing folder is not an error.
export void read_top_folder(const std::string& path, top_listing& into);
/// Of all folders of the user.
export [[nodiscard]] top_listing read_top();
export [[nodiscard]] std::string to_table(const top_listing& listing);
/// `more`: objects that follow, each with the comma before it if it is not the first one.
export [[nodiscard]] std::string to_json(const top_listing& listing, std::string_view more = {});

/// A slot of an open file. Errors: invalid_argument (not a sample, or the file ends before it),
/// unavailable (it was being written at each try).
export [[nodiscard]] result<top_sample> read_slot(int file, std::uint32_t place);

}  // namespace vmm::tools
