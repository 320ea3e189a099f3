// Early return of errors.
//
//   TERRACE_RETURN_IF_ERROR(file.Write(bytes));
//   TERRACE_ASSIGN_OR_RETURN(const Digest key, Digest::FromHex(text));
#pragma once

#include <utility>

#include "terrace/status.h"

#define TERRACE_RETURN_IF_ERROR(expression)            \
  do {                                                 \
    ::terrace::Status terrace_status_ = (expression);  \
    if (!terrace_status_.ok()) return terrace_status_; \
  } while (false)

#define TERRACE_MACRO_JOIN_INNER_(a, b) a##b
#define TERRACE_MACRO_JOIN_(a, b) TERRACE_MACRO_JOIN_INNER_(a, b)

#define TERRACE_ASSIGN_OR_RETURN(target, expression) \
  TERRACE_ASSIGN_OR_RETURN_INNER_(TERRACE_MACRO_JOIN_(terrace_result_, __LINE__), target, expression)

#define TERRACE_ASSIGN_OR_RETURN_INNER_(result, target, expression) \
  auto result = (expression);                                       \
  if (!result.ok()) return result.status();                         \
  target = std::move(result).value()
