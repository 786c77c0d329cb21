// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm-owner: creates the memory that the processes of a device share, and decides which has it.
//
// Exit codes: 0 all well; 1 the owner cannot be, or cannot be reached, or refuses; 2 the command
// line is wrong; 4 the program's own memory ran out.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "../program/options.hpp"
#include "../program/output.hpp"
#include "control.hpp"
#include "service.hpp"

namespace {

using vmm::market_kind, vmm::market_message;

constexpr const char* usage =
    "usage: vmm-owner serve FOLDER DEVICE [--daemon] [--stay] [--capacity BYTES]\n"
    "                 [--context BYTES] [--quiet-ms N]\n"
    "       vmm-owner ctl list|drain FOLDER DEVICE\n"
    "       vmm-owner ctl share FOLDER DEVICE TENANT [--guarantee BYTES] [--limit BYTES]\n"
    "                 [--priority 0..7] [--elastic]\n"
    "\n"
    "Owns the memory of a device, for programs that join the market (docs/market.md) with\n"
    "VMM_OWNER=auto or VMM_OWNER=FOLDER, an absolute path. DEVICE is the 32 digits of a CUDA\n"
    "device's UUID, or host. Ends with its last tenant.\n"
    "  --daemon            in the background; returns once it listens. It logs beside its socket\n"
    "  --stay              also without a tenant; then it holds no memory of the device\n"
    "  --capacity BYTES    the memory to share (default: the device's)\n"
    "  --context BYTES     a tenant's own memory beside it (default: 528MiB, host: 0)\n"
    "  --quiet-ms N        from the end of a tenant's processes to the next use (default: 200)\n"
    "  --guarantee BYTES, --limit BYTES, --priority N, --elastic   what changes of a tenant's "
    "share\n"
    "  --help, --version\n";

struct command {
  std::string verb{}, action{};
  vmm::tools::service_options service{};
  std::uint64_t tenant = 0;
  // What ctl share changes; the rest of the tenant's share stays.
  std::optional<std::uint64_t> guarantee_bytes{}, limit_bytes{};
  std::optional<std::uint8_t> priority{};
  [[nodiscard]] bool has_share() const {
    return guarantee_bytes || limit_bytes || priority || is_elastic;
  }
  bool is_elastic = false;
  bool is_daemon = false;
};

bool is_device(std::string_view name) {
  if (name == "host" || name == "fake") return true;
  return name.size() == 32 && name.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// Empty, or what is wrong.
std::string read_words(int count, char** words, command& into) {
  std::vector<std::string> plain;
  option_list list(usage);
  const auto add_bytes = [&](std::string_view name, auto& bytes, bool can_be_none) {
    const std::string range = "a size from 2MiB to 64PiB, such as 40GiB";
    list.checked(name, can_be_none ? "0, or " + range : range,
                 [&bytes, can_be_none](std::string_view value) {
                   const auto found = vmm::parse_bytes(value);
                   if (found) bytes = *found;
                   if (!found || *found == 0) return found && can_be_none;
                   return *found >= vmm::market_granule_bytes && *found <= vmm::option_bytes_max;
                 });
  };
  add_bytes("--capacity", into.service.capacity_bytes, false);
  add_bytes("--context", into.service.context_bytes, true);
  add_bytes("--guarantee", into.guarantee_bytes, true);
  add_bytes("--limit", into.limit_bytes, true);
  const std::string why =
      list.number("--quiet-ms", into.service.quiet_ms, "a number from 0 to 60000", 0, 60'000)
          .number("--priority", into.priority, "a number from 0 to 7", 0, 7)
          .flag("--daemon", into.is_daemon)
          .flag("--stay", into.service.stays)
          .flag("--elastic", into.is_elastic)
          .words(plain)
          .parse(count, words);
  if (!why.empty()) return why;
  if (plain.empty()) return "serve or ctl comes first";
  into.verb = plain[0];
  const std::size_t first = into.verb == "ctl" ? 2 : 1;
  if (into.verb != "ctl" && into.verb != "serve") return "'" + into.verb + "' is not a command";
  if (first == 2) into.action = plain.size() > 1 ? plain[1] : "";
  const bool is_share = into.action == "share";
  if (!is_share && into.has_share())
    return "--guarantee, --limit, --priority and --elastic are of ctl share; VMM_TENANT has them "
           "for a tenant that begins";
  if (first == 2 && (into.is_daemon || into.service.stays || into.service.capacity_bytes != 0 ||
                     into.service.context_bytes))
    return "--daemon, --stay, --capacity and --context are of serve";
  if (first == 2 && into.action != "list" && into.action != "drain" && !is_share)
    return "ctl takes list, drain or share";
  const std::size_t count_taken = first + 2 + (is_share ? 1 : 0);
  if (plain.size() > count_taken) return "'" + plain[count_taken] + "' is one argument too many";
  if (plain.size() != count_taken)
    return is_share ? "name the folder, the device and the tenant's number"
                    : "name the folder and the device";
  into.service.directory = plain[first];
  if (!plain[first].starts_with('/'))
    return "FOLDER is an absolute path, as in VMM_OWNER; not '" + plain[first] + "'";
  into.service.device = plain[first + 1];
  if (!is_device(plain[first + 1]))
    return "DEVICE is the 32 digits of a CUDA device's UUID, in small letters, or host; not '" +
           plain[first + 1] + "'";
  if (is_share) {
    const auto tenant = vmm::tools::read_count(plain[first + 2].c_str(), 1);
    if (!tenant) return "'" + plain[first + 2] + "' is not a tenant's number";
    into.tenant = *tenant;
    if (!into.has_share()) return "ctl share takes --guarantee, --limit, --priority or --elastic";
  }
  return "";
}

// ---- serve ---------------------------------------------------------------------------

// Before the process has descriptors and signals of its own: what is there is the program's that
// started it.
void leave_starter() {
  for (int each = 1; each < SIGRTMIN; ++each) (void)std::signal(each, SIG_DFL);
  (void)std::signal(SIGPIPE, SIG_IGN);  // a starter that has ended ends no owner
  sigset_t none;
  ::sigemptyset(&none);
  (void)::sigprocmask(SIG_SETMASK, &none, nullptr);
  // 0 to 2 are files that the starter may have closed: no socket takes their numbers.
  int last = 0;
  do {
    last = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  } while (last >= 0 && last <= STDERR_FILENO);
  if (::syscall(SYS_close_range, STDERR_FILENO + 1, ~0U, 0) == 0) return;
  for (int each = STDERR_FILENO + 1; each < 4096; ++each) (void)::close(each);
}

// The child opens the driver. The parent ends when the child serves, or has ended. Returns the
// descriptor on which the child says that it serves.
int become_daemon(const std::string& log) {
  int ends[2] = {-1, -1};
  const bool has_ends = ::pipe2(ends, O_CLOEXEC) == 0;
  const ::pid_t child = has_ends ? ::fork() : -1;
  if (child != 0) {
    char served = 0;
    if (child > 0) (void)::close(ends[1]);
    while (child > 0 && ::read(ends[0], &served, 1) < 0 && errno == EINTR) {
    }
    if (child < 0) {
      std::fprintf(stderr, "vmm-owner: no process can be started (%s)\n", std::strerror(errno));
    } else if (served == 0) {
      std::fprintf(stderr, "vmm-owner: the owner has ended: see %s\n", log.c_str());
    }
    std::_Exit(served != 0 ? 0 : 1);
  }
  (void)::setsid();
  (void)!::chdir("/");
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  int file =
      ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
  int failure = file < 0 ? errno : 0;
  struct stat facts{};
  if (file >= 0 && (::fstat(file, &facts) != 0 || !S_ISREG(facts.st_mode))) {
    (void)::close(std::exchange(file, -1));
    failure = ENXIO;
  }
  const bool is_other = failure == ENXIO || failure == ELOOP;
  const char* const why = is_other ? "it is not a regular file: remove it"
                                   : vmm::file_text(failure, "it cannot be written");
  if (file < 0)
    std::fprintf(stderr, "vmm-owner: nothing is logged in %s (%s): %s\n", log.c_str(),
                 vmm::errno_name(failure), why);
  (void)!::dup2(nothing, STDIN_FILENO);
  (void)!::dup2(nothing, STDOUT_FILENO);
  (void)!::dup2(file >= 0 ? file : nothing, STDERR_FILENO);
  (void)::close(nothing);
  (void)::close(file);
  (void)::close(ends[0]);
  return ends[1];
}

// Of a daemon beside another owner, as where two tenants begin at once. Empty: it serves as well as
// this one would.
std::string problem_of_owner(const command& what, const vmm::tools::owner_report& other) {
  const std::uint64_t capacity_bytes = what.service.capacity_bytes;
  const std::string named = "an owner of " + what.service.device;
  if (other.is_draining) return named + " ends with its last tenant; serve again after that";
  if (capacity_bytes == 0 || capacity_bytes == other.capacity_bytes) return "";
  return named + " has " + std::to_string(other.capacity_bytes >> 20) + " MiB already, not " +
         std::to_string(capacity_bytes >> 20) + ": drain it first, or leave --capacity out";
}

int serve(const command& what) {
  if (what.is_daemon) leave_starter();
  vmm::tools::owner_service service(what.service);
  bool is_owned = false;
  std::string why = service.claim(is_owned);
  // An owner that begins or ends does not respond: it listens, or is gone, in a moment.
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  while (is_owned && what.is_daemon && std::chrono::steady_clock::now() < until) {
    vmm::tools::owner_report other;
    if (control_owner(vmm::tools::owner_paths(what.service).socket, {}, other).empty()) {
      why = problem_of_owner(what, other);
      if (!why.empty()) break;
      std::printf("vmm-owner: an owner of %s listens in %s already\n", what.service.device.c_str(),
                  what.service.directory.c_str());
      return 0;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    why = service.claim(is_owned);
  }
  int starter = -1;
  if (why.empty() && what.is_daemon)
    starter = become_daemon(vmm::tools::owner_paths(what.service).log);
  if (why.empty()) why = service.open();
  if (!why.empty()) {
    std::fprintf(stderr, "vmm-owner: %s\n", why.c_str());
    return 1;
  }
  if (starter >= 0) {
    (void)!::write(starter, "1", 1);
    (void)::close(starter);
  }
  service.run();
  return 0;
}

// ---- ctl -----------------------------------------------------------------------------

int fail(const std::string& why) {
  std::fprintf(stderr, "vmm-owner: %s\n", why.c_str());
  return 1;
}

// The owner refuses the number of no tenant.
vmm::market_share changed_share(const command& what, const vmm::tools::owner_report& now) {
  vmm::market_share share;
  for (const vmm::market_row& each : now.rows)
    if (each.tenant == what.tenant) share = each.share;
  share.guarantee_bytes = what.guarantee_bytes.value_or(share.guarantee_bytes);
  share.limit_bytes = what.limit_bytes.value_or(share.limit_bytes);
  share.priority = what.priority.value_or(share.priority);
  share.elastic = share.elastic || what.is_elastic;
  return share;
}

int control(const command& what) {
  market_message request;
  request.kind = what.action == "list"    ? market_kind::query
                 : what.action == "drain" ? market_kind::drain
                                          : market_kind::set_share;
  const std::string socket = vmm::tools::owner_paths(what.service).socket;
  vmm::tools::owner_report report{.device = what.service.device};
  std::string why;
  if (request.kind == market_kind::set_share) {
    vmm::tools::owner_report now;
    why = control_owner(socket, {}, now);
    request.tenant = what.tenant;
    request.share = changed_share(what, now);
  }
  if (why.empty()) why = control_owner(socket, request, report);
  if (why.empty()) why = vmm::tools::print(to_table(report));
  return why.empty() ? 0 : fail(why);
}

}  // namespace

int main(int count, char** words) {
  vmm::tools::answer_help(count, words, usage);
  command what;
  if (const std::string problem = read_words(count, words, what); !problem.empty()) {
    vmm::tools::refuse_line("vmm-owner", problem);
    return 2;
  }
  return what.verb == "serve" ? serve(what) : control(what);
}
