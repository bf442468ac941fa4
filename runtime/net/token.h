#pragma once
// The cluster's token in a file, readable by its owner alone: hexadecimal digits and a newline,
// then "authority sha256:…" and a newline, the fingerprint of the certificate authority that this
// token makes (certificates.h), which need not be there. It is all that a machine needs to join.
//
// Nothing here, and nobody else, writes a token to a log, a command line or the environment.

#include <istream>
#include <string>
#include <string_view>

#include "runtime/base/file_system.h"
#include "runtime/base/random.h"
#include "runtime/base/status.h"
#include "runtime/net/credentials.h"

namespace troupe::net {

// 32 random bytes.
Token make_token(Random& random);
// "5a5b…\nauthority sha256:…\n"
Result<std::string> token_text(const Token& token);
// The inverse, white space around the parts allowed; `where` names the source in messages, which
// never show what was in it. kInvalidArgument; also for a fingerprint that is not this token's.
Result<Token> parse_token(std::string_view text, std::string_view where);

// Reads a token file. kPermissionDenied where others than the owner may read it, with the command
// that mends it; kNotFound; kInvalidArgument.
Result<Token> read_token_file(FileSystem& files, const std::string& path);
// The same; makes the file (0600), and its directory (0700), where there is none.
Result<Token> load_or_create_token(FileSystem& files, Random& random, const std::string& path);
// The first line of a stream (--token-stdin).
Result<Token> read_token(std::istream& in);

}  // namespace troupe::net
