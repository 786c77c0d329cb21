// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// For the precompiled header that programs share, which belongs to this file's target.
