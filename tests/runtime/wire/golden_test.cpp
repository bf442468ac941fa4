// The bytes of every message stay what they are: peers of another build and journals of an earlier
// one hold them.

#include <doctest/doctest.h>

#include <string_view>

#include "runtime/base/hash.h"
#include "tests/runtime/wire/every_message.h"

namespace troupe::wire {
namespace {

// One hash per message, in the order of its family: of the message with every field filled,
// followed by the message with none. A field that is added changes the hashes of the messages that
// have it: after a look at what else the change did, the new ones go here.
constexpr std::uint64_t kControlHashes[] = {
    0xc036255577546a5f, 0x3fea46640f0b8aba, 0xc201596d0dcc4bd7, 0xd24c5dd8e641ac2d,
    0x1e245adcb9889b58, 0x5fed4c9d21533acf, 0xa2fab93f0b2f56aa, 0x0d9bfab3316f737c,
    0x5b7918d15616163f, 0xed147bea383c7eb5, 0x2a4c7f49d6be029f, 0x9de7428d1ccfacca,
    0x2a38630a59343c4d, 0x1c86da154fc88c03, 0xbd1a6bf83114201d, 0x7964a973c0d7b15e,
    0x9035549e9bebf736, 0xecfe7c69afa43ce5, 0x25b06899a5e56fae, 0x73ac02530b58504b,
    0xfce96424323f4e21, 0xbc7b72b1ccda4edc, 0x6b6c2f776186894d, 0xd22f03b3a66e3bea,
    0xef6825bb47613dcf, 0xaee2489d09ea96cc, 0xcea99165ccc7f806, 0xe2f64d0547eabd12,
    0x6bcd77bedb1a65a6, 0x9421b499b9320a3c, 0xab8e640a0522aa1e, 0x23d967007950cecd,
    0x1bc4c6ad583736b9, 0x1d97293616daa1d4, 0xb718ffc62725e8d2, 0x7bd5ca99b6fc3918,
    0xf8f494a3a9e3f21a, 0x1c51cb9a72484974, 0xafd93dcd11e4bf30, 0x1d8b8de86f3a0118,
    0x1d6a0851d333a61a, 0x70400a5e088163d3, 0x331d1f967ed51c79, 0x2fbb6f60a8846fde,
    0xc335173e5b215e2d, 0x2cda0593bc310fe0, 0x48de7e303d445ab0, 0x4924b2edbc4fb168,
    0x9e39cad638b791f8, 0xd0bd542aa25ebae2, 0x0b64ac06fb5c1957, 0x2b2cc7295a904c14,
    0xef2cd1b76d94dfbb, 0xf158fa7456b73eae, 0x8c2d3145f50a9962, 0xc31f3f655db58539,
    0x5e35849205d37c8b, 0xc3c1f411eafaf249, 0xae332842fcda5fd6, 0xd8b6d426dfbd3e36,
    0x1a6cca228549fe26, 0x7a9a6a26dc6fc253, 0x90c45865cee55ed0, 0xadcfcfa5c21ccc19,
    0xbe593503b75d5e54, 0x1ba144c20349e977,
};
constexpr std::uint64_t kHostHashes[] = {
    0x33a51e6028ffe99b, 0xbe08740c89692e8e, 0x882fcaa63f1ad52d, 0x0ba02afbdd641e58,
    0x344a6fb4fdb68570, 0x5810c28abfaab380, 0x33786a227b3c9e22, 0x07a5775f660008b8,
    0x198a1febf02e6ad2, 0x491c7e8984356654, 0x2d6285b56724432c,
};
constexpr std::uint64_t kKeeperHashes[] = {
    0x25196febc80320b0, 0x9af46df15cb6efe3, 0x219423e9662451fd, 0xc6ddd643aae54858,
    0x94ae858e535bccd1, 0xa3231b850289ffcd, 0xab9536f807b65a02, 0x275cda900e6382a5,
    0x273dc5964520d669, 0xaec8fe80fb8e180c, 0x2e582632f979ee7f, 0xa778a87fb847297f,
    0x8e9f22c4ab2ce6e5, 0x30d85194abf86d84, 0xcbfc0fae6f18be2e, 0x167123e506c5f8e6,
};
constexpr std::uint64_t kObjectHashes[] = {
    0x82eabc4c062e9a68, 0xa30ca326c64b37fc, 0x3534587b21408950, 0x4cfae2390ebafefe,
    0xf2f7cb2d37fe1a9a, 0xf4198ec0d0681ab0, 0xb7106c170ace1a2e, 0xed3d396d36abd1e2,
    0x13bcb608ab0c71e1, 0xdcd208fd49680157, 0x3aec49aa950fade0, 0x936902974b13dc37,
    0xdcf7d885f6808826, 0xbf6b41d9f388ca86, 0xd4e3a0d43df9358b, 0x1acd5f499212485e,
    0x429aa4c4c6f349a2, 0xac02cab3d870a80a, 0xdbc67fc05e56207e, 0x7efa42cdd7fd4912,
    0x7f5bfe27de9d0869, 0x02b139f267bbea89, 0x36ee28d1d9525dd6,
};
constexpr std::uint64_t kCallHashes[] = {
    0xda94acba4418739e, 0xa8c18ceb9d5fbcfd, 0x27eb962e626c5961, 0x68cbb32d065559e8,
    0x94ae858e535bccd1, 0x70987a3c47607817, 0x61761b59c5690da5, 0xa938c5c4c4b32e9a,
    0x634492e1039fd5d6, 0xf9f46f107d121a90, 0x12a895ce2f23b97c,
};

template <typename Family>
void check_bytes(std::span<const std::uint64_t> expected) {
  const auto all = tests::every_message<Family>();
  REQUIRE(expected.size() == all.filled.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    Bytes bytes = encode(all.filled[i]);
    const Bytes empty = encode(all.empty[i]);
    bytes.insert(bytes.end(), empty.begin(), empty.end());
    CHECK_MESSAGE(xxh3_64(bytes) == expected[i], all.names[i],
                  " is encoded differently: ", fmt::format("{:#018x}", xxh3_64(bytes)));
  }
}

TEST_CASE("every message has the bytes that it always had") {
  check_bytes<ControlMessage>(kControlHashes);
  check_bytes<HostMessage>(kHostHashes);
  check_bytes<KeeperMessage>(kKeeperHashes);
  check_bytes<ObjectMessage>(kObjectHashes);
  check_bytes<CallMessage>(kCallHashes);
}

}  // namespace
}  // namespace troupe::wire
