// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The order of search results: guides, then the reference, then results and decisions, then files.
var Scorer = {
  score: ([page, , , , score]) => {
    const rank = [
      [/^files\//, -40],
      [/^(decisions|results)\//, -8],
      [/^(changelog|contributing|security|readme|architecture|contract)$/, -8],
      [/^reference\//, -4],
    ].find(([folder]) => folder.test(page));
    return score + (rank ? rank[1] : 0);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
