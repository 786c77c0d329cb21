// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// HMAC-SHA-256 of OpenSSL's libcrypto, loaded at run time so that neither build nor start require
// it, else of the kernel's AF_ALG.
#include <dlfcn.h>
#include <linux/if_alg.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <cstring>

#include "system.hpp"

import vmm.base;

namespace vmm::unix_os {
namespace {

constexpr std::size_t digest_bytes = 32;

// As openssl/evp.h and openssl/hmac.h declare them since 1.1; tests/share/mac_test.cpp compares.
using sha256_call = const void* (*)();
using hmac_call = unsigned char* (*)(const void* kind, const void* key, int key_size,
                                     const unsigned char* text, std::size_t text_size,
                                     unsigned char* digest, unsigned int* digest_size);

struct crypto_calls {
  sha256_call sha256 = nullptr;
  hmac_call hmac = nullptr;
};

crypto_calls load_crypto() noexcept {
  for (const char* name : {"libcrypto.so.3", "libcrypto.so.1.1"}) {
    void* const library = load_named(name).handle;
    if (library == nullptr) continue;
    const crypto_calls found{reinterpret_cast<sha256_call>(::dlsym(library, "EVP_sha256")),
                             reinterpret_cast<hmac_call>(::dlsym(library, "HMAC"))};
    if (found.sha256 != nullptr && found.hmac != nullptr) return found;  // it stays loaded
    (void)::dlclose(library);
  }
  return {};
}

bool hmac_by_library(bytes_in key, bytes_in text, std::byte* digest) noexcept {
  static const crypto_calls crypto = load_crypto();
  if (crypto.hmac == nullptr || key.size > INT_MAX) return false;
  check(crypto.sha256 != nullptr, "a library signs and has no digest");
  std::array<unsigned char, 64> made{};
  unsigned int size = 0;
  const bool done = crypto.hmac(crypto.sha256(), key.data, static_cast<int>(key.size),
                                reinterpret_cast<const unsigned char*>(text.data), text.size,
                                made.data(), &size) != nullptr &&
                    size == digest_bytes;
  if (done) std::memcpy(digest, made.data(), digest_bytes);
  return done;
}

bool hmac_by_kernel(bytes_in key, bytes_in text, std::byte* digest) noexcept {
  const int kind = ::socket(AF_ALG, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (kind < 0) return false;
  sockaddr_alg wanted{};
  wanted.salg_family = AF_ALG;
  std::memcpy(wanted.salg_type, "hash", 5);
  std::memcpy(wanted.salg_name, "hmac(sha256)", 13);
  int work = -1;
  if (::bind(kind, reinterpret_cast<const sockaddr*>(&wanted), sizeof wanted) == 0 &&
      ::setsockopt(kind, SOL_ALG, ALG_SET_KEY, key.data, static_cast<socklen_t>(key.size)) == 0)
    work = ::accept4(kind, nullptr, nullptr, SOCK_CLOEXEC);
  const bool done = work >= 0 &&
                    ::send(work, text.data, text.size, 0) == static_cast<ssize_t>(text.size) &&
                    ::read(work, digest, digest_bytes) == static_cast<ssize_t>(digest_bytes);
  close(work);
  close(kind);
  return done;
}

}  // namespace

bool hmac_sha256(bytes_in key, bytes_in text, std::byte* digest) noexcept {
  check(key.data != nullptr && key.size != 0, "a proof is made without a secret");
  check(digest != nullptr && (text.data != nullptr || text.size == 0), "a proof is of nothing");
  return hmac_by_library(key, text, digest) || hmac_by_kernel(key, text, digest);
}

}  // namespace vmm::unix_os
