#include "tests/tools/machines/local_sshd.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include "tests/support/free_port.h"

namespace troupe::tests {
namespace {

using std::string;

void write_text(const string& path, const string& text) { std::ofstream(path) << text; }
string read(const string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::unique_ptr<LocalSshd> skip(const string& why) {
  std::cout << "SKIPPED: hosts over ssh: " << why << std::endl;
  return nullptr;
}

}  // namespace

std::unique_ptr<LocalSshd> LocalSshd::start(int count) {
  // Installed, or unpacked by tools/setup.
  const string unpacked = std::filesystem::absolute(source_dir()).string() + "/build/packages/";
  string program = "/usr/sbin/sshd";
  if (!std::filesystem::exists(program)) program = unpacked + "openssh-server/usr/sbin/sshd";
  if (!std::filesystem::exists(program)) return skip("there is no sshd: run tools/setup");
  if (::geteuid() != 0) return skip("an sshd with users of its own needs root");
  if (run_command({"unshare", "-m", "true"}).exit_code != 0) {
    return skip("no mount namespace can be made here");
  }
  std::unique_ptr<LocalSshd> sshd(new LocalSshd(count));
  const auto& directory = sshd->directory_;
  for (const char* key : {"host", "key"}) {
    if (run_command({"ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", directory.file(key)})
            .exit_code != 0) {
      return skip("there is no ssh-keygen: run tools/setup");
    }
  }
  const int port = free_port();
  string listens, known;
  const string host_key = read(directory.file("host.pub"));
  for (int i = 1; i <= count + 1; ++i) {
    listens += fmt::format("ListenAddress 127.0.0.{}\n", i);
    if (i <= count) known += fmt::format("[127.0.0.{}]:{} {}", i, port, host_key);
  }
  // One that no server listens at is known, too: only its connection fails.
  known += fmt::format("[127.0.0.99]:{} {}", port, host_key);
  std::filesystem::create_directory(directory.file("home"));
  std::filesystem::create_directory(directory.file("old"));
  const string old = directory.file("old/troupe");
  write_text(old, "#!/bin/sh\necho 'troupe 0.0.9'\necho 'protocol 1'\n");
  std::filesystem::permissions(old, std::filesystem::perms::owner_all);
  write_text(directory.file("known"), known);
  write_text(directory.file("config"),
             fmt::format("Host *\n Port {}\n User root\n IdentityFile {}\n IdentitiesOnly yes\n"
                         " UserKnownHostsFile {}\n GlobalKnownHostsFile /dev/null\n",
                         port, directory.file("key"), directory.file("known")));
  write_text(
      directory.file("sshd_config"),
      fmt::format("Port {}\n{}HostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\n"
                  "PidFile none\nPasswordAuthentication no\nPermitRootLogin yes\n"
                  "MaxStartups 100\nMatch LocalAddress 127.0.0.{}\n SetEnv TROUPE={}\n",
                  port, listens, directory.file("host"), directory.file("key.pub"), count, old));
  // Its users are in a file of its own, and so is /run: the machine's stay as they are.
  string users =
      fmt::format("root:x:0:0:root:{}:/bin/sh\nsshd:x:105:65534::/run/sshd:/usr/sbin/nologin\n",
                  directory.file("home"));
  write_text(directory.file("passwd"), users);
  const string script = fmt::format(
      "mount --bind {} /etc/passwd && mount -t tmpfs tmpfs /run && mkdir /run/sshd && "
      "exec {} -D -e -f {}",
      directory.file("passwd"), program, directory.file("sshd_config"));
  CommandOptions options;
  for (const auto& entry : std::filesystem::directory_iterator(
           std::filesystem::exists(unpacked + "libwrap0/lib")       ? unpacked + "libwrap0/lib"
           : std::filesystem::exists(unpacked + "libwrap0/usr/lib") ? unpacked + "libwrap0/usr/lib"
                                                                    : directory.path())) {
    if (entry.is_directory() && entry.path().string().ends_with("-linux-gnu")) {
      options.environment["LD_LIBRARY_PATH"] = entry.path().string();
    }
  }
  sshd->server_ = std::make_unique<BackgroundCommand>(
      std::vector<string>{"unshare", "-m", "sh", "-c", script}, options);
  const string last = fmt::format("listening on 127.0.0.1 port {}", port);
  if (!sshd->server_->wait_for_output(last, std::chrono::seconds(10))) {
    return skip("sshd did not start: " + sshd->server_->output());
  }
  return sshd;
}

string LocalSshd::stranger() const { return host(count_ + 1); }
string LocalSshd::outdated() const { return host(count_); }

string LocalSshd::hostfile(const std::vector<string>& lines) const {
  const string path = directory_.file("hostfile");
  string text;
  for (const string& line : lines) text += line + "\n";
  write_text(path, text);
  return path;
}

}  // namespace troupe::tests
