#include "runtime/recipe/normalizer.hpp"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>

#include <nlohmann/json.hpp>

namespace troupe::recipe {

result<void> normalizer::add(const nlohmann::json& section, const std::string& where) {
  if (!section.is_object() || !section.contains("type") || !section["type"].is_string()) {
    return fail(errc::invalid_argument, "{}: null or an object with a string `type` is expected", where);
  }
  std::string type = section["type"];
  if (type == "Sequence") {
    auto list = section.find("normalizers");
    if (list == section.end() || !list->is_array())
      return fail(errc::invalid_argument, "{}.normalizers: a list is expected", where);
    for (size_t i = 0; i < list->size(); ++i) {
      if (auto r = add((*list)[i], fmt::format("{}.normalizers[{}]", where, i)); !r) return r;
    }
    return {};
  }
  if (type == "NFC")
    forms_.push_back(form::nfc);
  else if (type == "NFD")
    forms_.push_back(form::nfd);
  else if (type == "NFKC")
    forms_.push_back(form::nfkc);
  else if (type == "NFKD")
    forms_.push_back(form::nfkd);
  else
    return fail(errc::unsupported, "{}: normalizer {} is not supported (NFC, NFD, NFKC, NFKD and Sequence are)", where,
                type);
  return {};
}

result<normalizer> normalizer::make(const nlohmann::json& section, const std::string& where) {
  normalizer n;
  if (section.is_null()) return n;
  if (auto r = n.add(section, where); !r) return fail(r.error());
  return n;
}

result<std::string> normalizer::apply(std::string_view text) const {
  std::string now(text);
  for (form f : forms_) {
    UErrorCode status = U_ZERO_ERROR;
    const icu::Normalizer2* n = f == form::nfc    ? icu::Normalizer2::getNFCInstance(status)
                                : f == form::nfd  ? icu::Normalizer2::getNFDInstance(status)
                                : f == form::nfkc ? icu::Normalizer2::getNFKCInstance(status)
                                                  : icu::Normalizer2::getNFKDInstance(status);
    if (U_FAILURE(status) != 0) return fail(errc::internal, "ICU has no normalisation data: {}", u_errorName(status));
    std::string out;
    icu::StringByteSink<std::string> sink(&out);
    n->normalizeUTF8(0, icu::StringPiece(now.data(), static_cast<int32_t>(now.size())), sink, nullptr, status);
    if (U_FAILURE(status) != 0)
      return fail(errc::invalid_argument, "the text cannot be normalised: {}", u_errorName(status));
    now = std::move(out);
  }
  return now;
}

}  // namespace troupe::recipe
