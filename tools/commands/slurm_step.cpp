#include "tools/commands/slurm_step.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/net/token.h"
#include "tools/commands/host_addresses.h"

namespace troupe::tools {
namespace {

constexpr Duration kFirstTaskTimeout = std::chrono::seconds(60);
// SLURM starts a step's tasks together; some are slower.
constexpr Duration kLateTaskTimeout = std::chrono::seconds(10);
// A shared folder's cache may hide a new file for a minute.
constexpr Duration kTokenTimeout = std::chrono::seconds(300);
constexpr Duration kLookForStep = std::chrono::milliseconds(50);

// An abstract Unix socket: it belongs to the node, and goes with its process.
std::pair<sockaddr_un, socklen_t> place_of(const SlurmTask& task) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = fmt::format("troupe-slurm-{}-{}-{}", ::getuid(), task.step, task.node);
  const std::size_t size = std::min(name.size(), sizeof address.sun_path - 1);
  name.copy(address.sun_path + 1, size);
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size)};
}

bool is_own(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::getuid();
}

}  // namespace

Result<std::unique_ptr<SlurmStep>> SlurmStep::enter(CommandContext& context) {
  const auto address = context.environment.get("TROUPE_ADDRESS");
  if (address && !address->empty()) return std::unique_ptr<SlurmStep>();
  auto task = TROUPE_TRY(read_slurm_task(context.environment));
  if (!task) return std::unique_ptr<SlurmStep>();
  std::unique_ptr<SlurmStep> step(new SlurmStep(context, std::move(*task)));
  if (step->first_of_node() && step->task_.tasks_here() > 1) TROUPE_RETURN_IF_ERROR(step->listen());
  return step;
}

SlurmStep::~SlurmStep() { end(1); }

// --- the tasks of a node -------------------------------------------------------------------------

Status SlurmStep::listen() {
  socket_ = UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  auto [address, size] = place_of(task_);
  if (::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::listen(socket_.get(), task_.tasks_here()) != 0) {
    return errno_status(errno, "wait for", "the node's other tasks");
  }
  ending_ = UniqueFd(::eventfd(0, EFD_CLOEXEC));
  thread_ = std::thread([this] { serve(); });
  return {};
}

void SlurmStep::serve() {
  std::vector<UniqueFd> others;
  const auto accept_waiting = [&] {
    for (;;) {
      UniqueFd other(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!other.valid()) return;
      if (is_own(other.get())) others.push_back(std::move(other));
    }
  };
  for (;;) {
    pollfd fds[2] = {{socket_.get(), POLLIN, 0}, {ending_.get(), POLLIN, 0}};
    ::poll(fds, 2, -1);  // ends with the run
    accept_waiting();
    if (fds[1].revents != 0) break;
  }
  // Who comes when a short run has ended would look for this task in vain.
  const Deadline late = Deadline::after(kLateTaskTimeout);
  while (std::ssize(others) + 1 < task_.tasks_here() && !late.passed()) {
    pollfd fd{socket_.get(), POLLIN, 0};
    ::poll(&fd, 1, static_cast<int>(kLookForStep / std::chrono::milliseconds(1)));
    accept_waiting();
  }
  const auto code = static_cast<std::uint8_t>(exit_code_);
  for (const UniqueFd& other : others) {
    static_cast<void>(::send(other.get(), &code, 1, MSG_NOSIGNAL) < 0);
  }
}

Result<int> SlurmStep::wait_for_first() {
  for (const int signal : {SIGTERM, SIGUSR1, SIGUSR2}) ::signal(signal, SIG_IGN);
  const Deadline deadline = Deadline::after(kFirstTaskTimeout);
  const auto [address, size] = place_of(task_);
  for (;;) {
    const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0 &&
        is_own(socket.get())) {
      std::uint8_t code = 0;
      ssize_t count = 0;
      do {
        count = ::read(socket.get(), &code, 1);  // until it ends, whenever that is
      } while (count < 0 && errno == EINTR);
      if (count == 1) return code;
      return error(Code::kUnavailable, "the first task of node {} was killed", task_.node);
    }
    if (deadline.passed()) {
      return error(Code::kUnavailable,
                   "the first task of node {} is not there after {} s: its output says why",
                   task_.node,
                   std::chrono::duration_cast<std::chrono::seconds>(kFirstTaskTimeout).count());
    }
    std::this_thread::sleep_for(kLookForStep);
  }
}

void SlurmStep::end(int exit_code) {
  if (thread_.joinable()) {
    exit_code_ = exit_code;
    const std::uint64_t one = 1;
    static_cast<void>(::write(ending_.get(), &one, sizeof one) < 0);
    thread_.join();
  }
  if (task_.node == 0 && !token_file_.empty()) {
    static_cast<void>(context_.files.remove(std::exchange(token_file_, {})));
  }
}

// --- the nodes of a step -------------------------------------------------------------------------

Result<std::map<std::string, std::string>> SlurmStep::share_token() {
  std::map<std::string, std::string> variables;
  const auto given = context_.environment.get("TROUPE_TOKEN_FILE");
  if (!task_.several_nodes() || (given && !given->empty())) return variables;
  if (task_.submit_dir.empty()) {
    return Status(Code::kInvalidArgument,
                  "SLURM_SUBMIT_DIR is not set, in which the nodes of the step share their token; "
                  "name a file that all of them have with TROUPE_TOKEN_FILE");
  }
  const std::string file = slurm_token_file(task_);
  if (task_.node == 0) {
    const auto text = TROUPE_TRY(net::token_text(net::make_token(context_.random)));
    TROUPE_RETURN_IF_ERROR(write_file_atomically(context_.files, file, text, 0600));
    token_file_ = file;
  } else {
    const Deadline deadline = Deadline::after(kTokenTimeout);
    while (!context_.files.exists(file)) {
      if (deadline.passed()) {
        return error(Code::kDeadlineExceeded,
                     "node 0 ({}) has not written {} within {} s: it has failed (its output says "
                     "why), or the folder is not the same on all nodes",
                     task_.nodes.front(), file,
                     std::chrono::duration_cast<std::chrono::seconds>(kTokenTimeout).count());
      }
      std::this_thread::sleep_for(kLookForStep);
    }
  }
  variables["TROUPE_TOKEN_FILE"] = file;
  return variables;
}

Result<std::map<std::string, std::string>> SlurmStep::launch_variables() {
  auto variables = TROUPE_TRY(share_token());
  const auto given = [&](const char* name) {
    const auto value = context_.environment.get(name);
    return value && !value->empty();
  };
  if (given("NNODES") || given("PET_NNODES")) {
    const auto rank = context_.environment.get("NODE_RANK");
    const auto nodes = context_.environment.get("NNODES");
    const std::string notice = rank == "0" && nodes == std::to_string(task_.nodes_count())
                                   ? expanded_node_rank(task_, 0, task_.nodes_count())
                                   : std::string();
    if (!notice.empty()) {
      context_.err << "notice: " << notice << std::endl;
      variables["NODE_RANK"] = std::to_string(task_.node);
    }
    return variables;
  }
  // The step's tasks are taken for what they are: that there are several is no contradiction.
  variables["SLURM_PROCID"] = "";
  if (task_.several_nodes()) {
    variables["NNODES"] = std::to_string(task_.nodes_count());
    variables["NODE_RANK"] = std::to_string(task_.node);
    const std::string& first = task_.nodes.front();
    const std::string address =
        task_.node == 0 ? TROUPE_TRY(own_address_of(context_, first)) : first;
    if (!given("MASTER_ADDR") && !address.empty()) variables["MASTER_ADDR"] = address;
    if (!given("MASTER_PORT")) variables["MASTER_PORT"] = std::to_string(task_.port());
  }
  if (task_.tasks_here() > 1 && !given("NPROC_PER_NODE")) {
    variables["NPROC_PER_NODE"] = std::to_string(task_.tasks_here());
  }
  return variables;
}

}  // namespace troupe::tools
