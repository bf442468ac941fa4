#include "tools/gpu_check/runner.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>

#include "runtime/base/json.h"
#include "troupe/unique_fd.h"

extern char** environ;

namespace troupe::tools::gpu {
namespace {

using Time = std::chrono::steady_clock::time_point;
Time now() { return std::chrono::steady_clock::now(); }
double seconds_since(Time begin) { return std::chrono::duration<double>(now() - begin).count(); }

// A check takes so many times as long as expected before it counts as hung, and this at least.
constexpr double kHungFactor = 5, kHungSecondsMin = 60;

const char* bar_sign(Figure::Bar bar) {
  switch (bar) {
    case Figure::Bar::kAtLeast:
      return ">=";
    case Figure::Bar::kAtMost:
      return "<=";
    default:
      return "";
  }
}

// JSON has no infinities.
json::Value number(double value) {
  if (std::isfinite(value)) return value;
  return value > 0 ? 1e300 : -1e300;
}

json::Object to_json(const CheckResult& r) {
  json::Object object;
  object["name"] = r.name;
  object["verdict"] = verdict_name(r.verdict);
  object["seconds"] = r.seconds;
  object["reason"] = r.reason;
  object["broken"] = r.broken;
  object["value"] = number(r.figure.value);
  object["unit"] = r.figure.unit;
  object["bar"] = bar_sign(r.figure.bar);
  object["bar_value"] = number(r.figure.bar_value);
  object["text"] = r.figure.text;
  return object;
}

Result<CheckResult> from_json(const std::string& line) {
  const json::Value value = TROUPE_TRY(json::parse(line, "a check's result"));
  CheckResult r;
  const auto text = [&](const char* key) { return json::find_string(value, key).value_or(""); };
  r.name = text("name");
  const std::string verdict = text("verdict"), bar = text("bar");
  r.verdict = verdict == "passed"   ? Verdict::kPassed
              : verdict == "failed" ? Verdict::kFailed
                                    : Verdict::kSkipped;
  r.seconds = json::find_number(value, "seconds").value_or(0);
  r.reason = text("reason");
  r.broken = json::find_bool(value, "broken").value_or(false);
  r.figure.value = json::find_number(value, "value").value_or(0);
  r.figure.unit = text("unit");
  r.figure.bar = bar == ">="   ? Figure::Bar::kAtLeast
                 : bar == "<=" ? Figure::Bar::kAtMost
                               : Figure::Bar::kNone;
  r.figure.bar_value = json::find_number(value, "bar_value").value_or(0);
  r.figure.text = text("text");
  return r;
}

void say(std::ostream& out, const CheckResult& r) {
  std::string line = fmt::format("{:<8}{:<40}", verdict_name(r.verdict), r.name);
  if (!r.figure.unit.empty()) {
    line += fmt::format(" {:.6g} {}", r.figure.value, r.figure.unit);
    if (r.figure.bar != Figure::Bar::kNone)
      line += fmt::format(" ({} {:.6g})", bar_sign(r.figure.bar), r.figure.bar_value);
  }
  if (r.seconds > 0) line += fmt::format("  [{:.1f} s]", r.seconds);
  out << line << "\n";
  if (!r.reason.empty()) out << "        " << r.reason << "\n";
  if (!r.figure.text.empty()) out << "        " << r.figure.text << "\n";
  out.flush();
}

// Whole at any moment: a run that is ended from outside leaves the results that it had.
Status keep(const std::vector<CheckResult>& results, const std::string& folder) {
  const std::string path = folder + "/results.json", next = path + ".new";
  std::ofstream file(next);
  file << results_json(results) << "\n";
  file.close();
  if (file.fail() || std::rename(next.c_str(), path.c_str()) != 0)
    return error(Code::kInternal, "{} cannot be written: {}", path, std::strerror(errno));
  return {};
}

// A process that runs checks, one after another.
class Worker {
 public:
  static Result<std::unique_ptr<Worker>> start(const RunOptions& options) {
    int to[2], from[2];
    if (::pipe2(to, O_CLOEXEC) != 0)
      return error(Code::kResourceExhausted, "a pipe: {}", std::strerror(errno));
    std::unique_ptr<Worker> worker(new Worker());
    const UniqueFd its_input(to[0]);
    worker->input_ = UniqueFd(to[1]);
    if (::pipe2(from, O_CLOEXEC) != 0)
      return error(Code::kResourceExhausted, "a pipe: {}", std::strerror(errno));
    worker->output_ = UniqueFd(from[0]);
    const UniqueFd its_output(from[1]);
    const std::string log = options.log_folder + "/worker.log";
    std::vector<std::string> words = {options.bench.program,
                                      "--worker",
                                      "--device",
                                      std::to_string(options.bench.device),
                                      "--python",
                                      options.bench.python};
    if (!options.bench.library_path.empty()) {
      words.push_back("--library");
      words.push_back(options.bench.library_path);
    }
    if (options.bench.rehearsal) words.push_back("--rehearsal");
    if (options.bench.kernels) words.push_back("--kernels");
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, its_input.get(), 0);
    ::posix_spawn_file_actions_adddup2(&actions, its_output.get(), 1);
    ::posix_spawn_file_actions_addopen(&actions, 2, log.c_str(), O_WRONLY | O_CREAT | O_APPEND,
                                       0644);
    const int code =
        ::posix_spawn(&worker->pid_, words[0].c_str(), &actions, nullptr, argv.data(), environ);
    ::posix_spawn_file_actions_destroy(&actions);
    if (code != 0) {
      worker->pid_ = -1;
      return error(Code::kInternal, "starting {}: {}", words[0], std::strerror(code));
    }
    return worker;
  }

  ~Worker() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // kDeadlineExceeded: it hangs. kActorDied: it ended, and how.
  Result<CheckResult> run(const std::string& name, double seconds_max) {
    const std::string line = name + "\n";
    if (::write(input_.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size()))
      return ended();
    const Time begin = now();
    std::string answer;
    while (true) {
      const std::size_t end = answer.find('\n');
      if (end != std::string::npos) return from_json(answer.substr(0, end));
      const double left = seconds_max - seconds_since(begin);
      pollfd wait{output_.get(), POLLIN, 0};
      if (left <= 0 || ::poll(&wait, 1, static_cast<int>(left * 1000) + 1) == 0)
        return error(Code::kDeadlineExceeded, "it hung: no result within {:.0f} s", seconds_max);
      std::array<char, 4096> part{};
      const ssize_t size = ::read(output_.get(), part.data(), part.size());
      if (size < 0 && errno == EINTR) continue;
      if (size <= 0) return ended();
      answer.append(part.data(), static_cast<std::size_t>(size));
    }
  }

 private:
  Worker() = default;

  Status ended() {
    int status = 0;
    // Its output has ended: it is ending, or it closed it, which a kill settles.
    ::kill(pid_, SIGKILL);
    const pid_t pid = std::exchange(pid_, -1);
    ::waitpid(pid, &status, 0);
    if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL)
      return error(Code::kActorDied, "its process died of signal {} ({})", WTERMSIG(status),
                   ::strsignal(WTERMSIG(status)));
    return error(Code::kActorDied, "its process ended without a result");
  }

  pid_t pid_ = -1;
  UniqueFd input_, output_;
};

}  // namespace

const char* verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPassed:
      return "passed";
    case Verdict::kFailed:
      return "failed";
    case Verdict::kSkipped:
      return "skipped";
  }
  return "";
}

CheckResult run_check(const Check& check, Bench& bench) {
  CheckResult r{.name = check.name};
  const Time begin = now();
  Result<Figure> figure = check.run(bench);
  r.seconds = seconds_since(begin);
  if (figure.ok()) {
    r.figure = std::move(*figure);
    r.verdict = r.figure.met() ? Verdict::kPassed : Verdict::kFailed;
    return r;
  }
  r.reason = figure.status().to_string();
  r.verdict = figure.status().code() == Code::kUnsupported ? Verdict::kSkipped : Verdict::kFailed;
  r.broken = true;
  return r;
}

std::vector<Check> selected_checks(const std::vector<std::string>& only) {
  std::vector<Check> checks = all_checks();
  if (only.empty()) return checks;
  std::erase_if(checks, [&](const Check& check) {
    return std::none_of(only.begin(), only.end(), [&](const std::string& part) {
      return check.name.find(part) != std::string::npos;
    });
  });
  return checks;
}

Result<std::vector<CheckResult>> run_checks(const RunOptions& options, std::ostream& out) {
  const std::vector<Check> checks = selected_checks(options.only);
  if (checks.empty())
    return error(Code::kInvalidArgument, "no check has such a name; --list shows them");
  ::signal(SIGPIPE, SIG_IGN);  // a worker that died is told by write()
  const Time begin = now();
  std::vector<CheckResult> results;
  std::unique_ptr<Worker> worker;
  for (const Check& check : checks) {
    CheckResult r{.name = check.name};
    const double left = options.seconds - seconds_since(begin);
    if (left < check.seconds) {
      r.reason = fmt::format("it takes about {:.1f} s, and {:.1f} of {:.0f} s are left",
                             check.seconds, std::max(0.0, left), options.seconds);
    } else {
      if (!worker) worker = TROUPE_TRY(Worker::start(options));
      const Time started = now();
      const double most = std::max(kHungSecondsMin, kHungFactor * check.seconds);
      Result<CheckResult> answer = worker->run(check.name, most);
      if (answer.ok()) {
        r = std::move(*answer);
      } else {
        r.verdict = Verdict::kFailed;
        r.reason = fmt::format("{}; {}/worker.log may say more", answer.status().message(),
                               options.log_folder);
        r.seconds = seconds_since(started);
        r.broken = true;
      }
      if (r.broken) worker.reset();
    }
    results.push_back(std::move(r));
    TROUPE_RETURN_IF_ERROR(keep(results, options.log_folder));
    say(out, results.back());
  }
  return results;
}

Status serve_checks(Bench& bench) {
  const std::vector<Check> checks = all_checks();
  std::string name;
  while (std::getline(std::cin, name)) {
    const auto check =
        std::find_if(checks.begin(), checks.end(), [&](const Check& c) { return c.name == name; });
    if (check == checks.end()) return error(Code::kInvalidArgument, "no check {}", name);
    std::cerr << "--- " << name << std::endl;
    const CheckResult r = run_check(*check, bench);
    if (!r.reason.empty()) std::cerr << r.reason << std::endl;
    std::cout << json::write(to_json(r)) << std::endl;
  }
  return {};
}

std::string results_json(const std::vector<CheckResult>& results) {
  json::Array list;
  std::array<std::int64_t, 3> counts{};
  for (const CheckResult& r : results) {
    list.push_back(to_json(r));
    ++counts[static_cast<std::size_t>(r.verdict)];
  }
  json::Object object;
  object["checks"] = std::move(list);
  for (const Verdict verdict : {Verdict::kPassed, Verdict::kFailed, Verdict::kSkipped})
    object[verdict_name(verdict)] = counts[static_cast<std::size_t>(verdict)];
  return json::write(object);
}

bool all_passed(const std::vector<CheckResult>& results) {
  return std::all_of(results.begin(), results.end(),
                     [](const CheckResult& r) { return r.verdict == Verdict::kPassed; });
}

}  // namespace troupe::tools::gpu
