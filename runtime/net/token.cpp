#include "runtime/net/token.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/file_lock.h"
#include "runtime/base/hash.h"

namespace troupe::net {
namespace {

constexpr std::size_t kTokenBytes = 32;
constexpr Duration kTurnTimeout = std::chrono::seconds(5);
constexpr std::size_t kTokenBytesMax = 256;
constexpr std::uint64_t kFileBytesMax = 4096;
constexpr std::string_view kSpace = " \t\r\n";
constexpr std::string_view kAuthority = "authority ";

int digit_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::string directory_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = std::min(text.find_first_not_of(kSpace), text.size());
  const std::size_t end = text.find_last_not_of(kSpace) + 1;
  return begin < end ? text.substr(begin, end - begin) : std::string_view();
}

// Held while a token is made, which takes a moment. None where the file system has no locks.
std::optional<FileLock> turn_to_make(const std::string& path) {
  const auto deadline = Deadline::after(kTurnTimeout);
  for (;;) {
    auto lock = FileLock::take(path + ".lock", "a process that makes the token");
    if (lock.ok()) return std::move(*lock);
    if (lock.status().code() != Code::kAlreadyExists || deadline.passed()) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // a lock tells nobody of its end
  }
}

Result<Token> parse_secret(std::string_view text, std::string_view where) {
  text = trimmed(text);
  if (text.size() < 2 * kTokenBytesMin || text.size() > 2 * kTokenBytesMax ||
      text.size() % 2 != 0) {
    return error(Code::kInvalidArgument,
                 "{} holds no token: it should be {} to {} hexadecimal digits, and has {} "
                 "characters",
                 where, 2 * kTokenBytesMin, 2 * kTokenBytesMax, text.size());
  }
  std::vector<std::byte> secret;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    const int high = digit_value(text[i]);
    const int low = digit_value(text[i + 1]);
    if (high < 0 || low < 0) {
      return error(Code::kInvalidArgument,
                   "{} holds no token: there is something else than hexadecimal digits in it",
                   where);
    }
    secret.push_back(static_cast<std::byte>(high << 4 | low));
  }
  return Token(std::move(secret));
}

}  // namespace

Token make_token(Random& random) {
  std::vector<std::byte> secret(kTokenBytes);
  random.fill(secret);
  return Token(std::move(secret));
}

Result<std::string> token_text(const Token& token) {
  return fmt::format("{}\n{}{}\n", to_hex(token.secret()), kAuthority,
                     TROUPE_TRY(token.authority_fingerprint()));
}

Result<Token> parse_token(std::string_view text, std::string_view where) {
  const std::size_t second = text.find(kAuthority);
  if (second == std::string_view::npos) return parse_secret(text, where);
  const Token token = TROUPE_TRY(parse_secret(text.substr(0, second), where));
  const std::string_view named = trimmed(text.substr(second + kAuthority.size()));
  const std::string made = TROUPE_TRY(token.authority_fingerprint());
  if (named == made) return token;
  return error(Code::kInvalidArgument,
               "{} is damaged, or put together of two: its token makes the authority {}, and its "
               "second line names another. Copy the head's file again",
               where, made);
}

Result<Token> read_token_file(FileSystem& files, const std::string& path) {
  const std::string text = TROUPE_TRY(files.read(path, kFileBytesMax));
  const unsigned mode = TROUPE_TRY(files.permissions(path));
  if ((mode & 077) != 0) {
    return error(Code::kPermissionDenied,
                 "the token file {} can be read by others (mode {:04o}), and whoever has the token "
                 "may run code on every node: run `chmod 600 {}`",
                 path, mode, path);
  }
  return parse_token(text, path);
}

Result<Token> load_or_create_token(FileSystem& files, Random& random, const std::string& path) {
  if (!files.exists(path)) {
    const std::string directory = directory_of(path);
    if (!directory.empty()) {
      TROUPE_RETURN_IF_ERROR(files.create_directories(directory, 0700));
    }
    // Processes that begin together have one token.
    const auto turn = turn_to_make(path);
    if (!files.exists(path)) {
      const std::string text = TROUPE_TRY(token_text(make_token(random)));
      TROUPE_RETURN_IF_ERROR(write_file_atomically(files, path, text, 0600));
    }
  }
  return read_token_file(files, path);
}

Result<Token> read_token(std::istream& in) {
  std::string line;
  char c;
  while (line.size() <= kFileBytesMax && in.get(c) && c != '\n') line.push_back(c);
  return parse_token(line, "standard input");
}

}  // namespace troupe::net
