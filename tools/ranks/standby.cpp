#include "tools/ranks/standby.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "runtime/base/file_system.h"
#include "runtime/base/json.h"
#include "troupe/unique_fd.h"

namespace troupe::tools {
namespace {

// The program of an interpreter that stands by. Only packages that are installed are imported
// ahead: the user's own modules may look at the environment, which is not there yet. The pipe is
// opened for writing, too, so that who wakes it need not wait for the imports.
constexpr const char* kProgram = R"PYTHON(
import sys
def _stand_by(pipe, script):
    import ast, importlib, importlib.util, json, os, site, sysconfig
    channel = os.open(pipe, os.O_RDWR)
    folders = set(sysconfig.get_paths().values()) | {site.getusersitepackages()} | set(site.getsitepackages())
    folders = tuple(os.path.realpath(folder) + os.sep for folder in folders)
    del sys.path[0]
    def installed(name):
        found = importlib.util.find_spec(name.partition(".")[0])
        origin = found.origin if found else ""
        return origin in (None, "built-in", "frozen") or os.path.realpath(origin).startswith(folders)
    with open(script, "rb") as file:
        text = file.read()
    # Only what the script's first statements import: what stands behind another statement, or
    # behind an import from the script's folder, may come out otherwise after that one has run.
    names = []
    try:
        for node in ast.parse(text).body:
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names.append(node.module)
            elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
                break
    except SyntaxError:
        pass
    beside = os.path.dirname(os.path.realpath(script))
    for name in names:
        first = os.path.join(beside, name.partition(".")[0])
        try:
            if os.path.exists(first) or os.path.exists(first + ".py") or not installed(name):
                break
            importlib.import_module(name)
        except Exception:
            break
    told = b""
    while not told.endswith(b"\n"):
        told += os.read(channel, 65536)
    os.close(channel)
    told = json.loads(told.decode("utf-8", "surrogateescape"))
    os.environ.update(told["environment"])
    sys.argv[:] = told["argv"]
    sys.path.insert(0, os.path.dirname(os.path.realpath(script)))
    with open(script, "rb") as file:
        return compile(file.read(), script, "exec")
_code = _stand_by(sys.argv[1], sys.argv[2])
import os
__file__ = os.path.abspath(sys.argv[0])
del _stand_by, sys, os
exec(_code)
)PYTHON";

// The place of the script among a rank's words; nothing where there is none.
std::optional<std::size_t> script_at(const std::vector<std::string>& words) {
  const std::string name = words.front().substr(words.front().rfind('/') + 1);
  if (!name.starts_with("python")) return std::nullopt;
  std::size_t i = 1;
  while (i < words.size() && words[i] == "-u") ++i;
  if (i == words.size() || !words[i].ends_with(".py")) return std::nullopt;
  return i;
}

}  // namespace

std::optional<std::vector<std::string>> standby_words(const std::vector<std::string>& rank_words,
                                                      const std::string& pipe) {
  const auto script = script_at(rank_words);
  if (!script) return std::nullopt;
  return std::vector<std::string>{rank_words.front(), "-u", "-c",
                                  kProgram,           pipe, rank_words[*script]};
}

Status wake_standby(const std::string& pipe, const std::vector<std::string>& rank_words,
                    const std::map<std::string, std::string>& environment) {
  const auto script = script_at(rank_words);
  if (!script) return Status(Code::kInvalidArgument, "no script of Python's");
  json::Array argv;
  for (std::size_t i = *script; i < rank_words.size(); ++i) argv.emplace_back(rank_words[i]);
  json::Object variables;
  for (const auto& [name, value] : environment) variables[name] = value;
  const std::string text =
      json::write(json::Object{{"argv", std::move(argv)}, {"environment", std::move(variables)}}) +
      "\n";
  const UniqueFd fd(::open(pipe.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  if (fd.get() < 0) return errno_status(errno, "open", pipe);
  // A pipe holds 64 KiB; more than that waits for imports, and a fresh interpreter is as quick.
  const ssize_t written = ::write(fd.get(), text.data(), text.size());
  if (written == static_cast<ssize_t>(text.size())) return {};
  return error(Code::kUnavailable, "{} takes {} bytes only later", pipe, text.size());
}

}  // namespace troupe::tools
