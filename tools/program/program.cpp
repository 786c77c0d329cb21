// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What every program of this project does beside its own work; cmake/VmmLibrary.cmake links it into
// each of them. When a program starts, environment variables that are misspelt are named on stderr.
// An exception that nothing in the program catches, on any thread, ends it with a message and the
// exit code 4 instead of an abort. A program whose standard output cannot be written reports it at
// its end, with exit code 1. At the process's limit of file size (ulimit -f) the call that writes
// returns an error and no signal ends the program, so that it can report it.
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <exception>
#include <new>

#include "output.hpp"
#include "usage.hpp"
#include "variables.hpp"

const char* const vmm::tools::library_version = VMM_VERSION;

namespace {

constexpr int exit_broken_off = 4;

/// Without an exception in flight this is a program's fault, which aborts as it always does.
[[noreturn]] void break_off() noexcept {
  const std::exception_ptr thrown = std::current_exception();
  if (!thrown) std::abort();
  std::fflush(stdout);
  try {
    std::rethrow_exception(thrown);
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "%s: this process is out of memory\n", program_invocation_short_name);
  } catch (const std::exception& unforeseen) {
    std::fprintf(stderr, "%s: an unexpected error: %s\n", program_invocation_short_name,
                 unforeseen.what());
  } catch (...) {
    std::fprintf(stderr, "%s: an unexpected error\n", program_invocation_short_name);
  }
  std::_Exit(exit_broken_off);
}

/// The last of what the program wrote goes out here.
void end_output() noexcept {
  if (vmm::tools::is_output_given_up) return;
  const std::string why = vmm::tools::print("");
  if (why.empty()) return;
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, why.c_str());
  std::_Exit(1);
}

[[maybe_unused]] const bool is_prepared = [] {
  std::set_terminate(&break_off);
  std::signal(SIGXFSZ, SIG_IGN);
  std::atexit(end_output);
  const std::string unknown = vmm::tools::unknown_variables(program_invocation_short_name, environ);
  std::fputs(unknown.c_str(), stderr);
  return true;
}();

}  // namespace
