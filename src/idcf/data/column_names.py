"""Which column of a table holds users, items, ratings and times: names given, or usual spellings.

Knows names only, no values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

from idcf.data.columns import warn_about_data
from idcf.errors import ConfigError, DataError, unknown_name_message

COLUMN_ROLES = ("user_id", "item_id", "rating", "timestamp")
# spellings in lower case and without "_", "-" and spaces, most common first
_SPELLINGS = {
    "user_id": "userid user uid customerid customer memberid visitorid accountid reviewerid",
    "item_id": "itemid item iid movieid movie productid product articleid bookid isbn asin trackid "
    "songid videoid",
    "rating": "rating ratings stars star score ratingvalue overall",
    "timestamp": "timestamp timestamps ts time datetime unixtime unixreviewtime",
}
_ROLE_BY_SPELLING = {x: role for role, text in _SPELLINGS.items() for x in text.split()}


def find_columns(
    columns: Mapping[str, str] | None, names: Sequence[str], source_name: str, implicit: bool | None
) -> dict[str, str]:
    """Name of the column of each role, among the `names` of all columns of a source.

    `columns` are those that differ from the role; where a role has none and no column is named like
    it, a usual spelling such as `userId` is recognized, with a warning that says so. Rating and
    timestamp are absent where there is no such column, but `implicit=False` needs a rating. Raises
    ConfigError for an unknown role, and DataError for a column that is missing or occurs twice or
    where two columns may be meant.
    """
    given_names = dict(columns or {})
    for role in given_names:
        if role not in COLUMN_ROLES:
            raise ConfigError(f"columns: {unknown_name_message('role', role, COLUMN_ROLES)}")
    others = [x for x in names if x not in given_names.values()]
    skipped = {*given_names, *(["rating"] if implicit else [])}  # counts must be named
    roles = [x for x in COLUMN_ROLES if x not in skipped]
    recognized = recognize_columns(others, source_name, roles)
    required = {"user_id", "item_id", *given_names, *(["rating"] if implicit is False else [])}
    name_by_role: dict[str, str] = {}
    for role in COLUMN_ROLES:
        name = given_names.get(role, recognized.get(role, role))
        if name in names:
            name_by_role[role] = name
        elif role in required:
            message = f"{source_name}: {unknown_name_message('column', name, names)}"
            if role not in given_names:
                message += f"; name yours: columns={{{role!r}: ...}}, --column {role}=..."
            raise DataError(message)
        if list(names).count(name) > 1:
            raise DataError(
                f"{source_name}: two columns are named {name!r} ({role}); rename one of them"
            )
    if implicit is None and "rating" not in name_by_role:
        name_by_lower = {name.lower(): name for name in names}
        for match in get_close_matches("rating", name_by_lower, n=1, cutoff=0.8):
            name = name_by_lower[match]
            warn_about_data(
                f"{source_name}: no column 'rating', so taken as implicit feedback; "
                f"if it is {name!r}, pass columns={{'rating': {name!r}}}"
            )
    if recognized:
        pairs = ", ".join(f"{name!r} as {role}" for role, name in recognized.items())
        warn_about_data(f"{source_name}: columns read by their usual names: {pairs}")
    return name_by_role


def resolve_columns(
    names: Sequence[str],
    source_name: str,
    columns: Mapping[str, str] | None = None,
    roles: Sequence[str] = COLUMN_ROLES,
) -> dict[str, str]:
    """Name of the column of each role that a table has one for.

    That is the one of `columns`, such as the mapping of `fit`, if the table has it, else the one
    named like the role, else one of a usual spelling. Raises DataError where two may be meant.
    """
    known = columns or {}
    given_names = {role: known[role] for role in roles if known.get(role) in names}
    others = [x for x in names if x not in given_names.values()]
    open_roles = [role for role in roles if role not in given_names]
    recognized = recognize_columns(others, source_name, open_roles)
    return given_names | {role: role for role in open_roles if role in others} | recognized


def recognize_columns(
    names: Sequence[str], source_name: str, roles: Iterable[str] = COLUMN_ROLES
) -> dict[str, str]:
    """Name of the column with a usual spelling of each role that no column is named like.

    Raises DataError where two columns may be meant.
    """
    candidates: dict[str, list[str]] = {role: [] for role in roles if role not in names}
    for name in names:
        candidates.get(_role_of(name) or "", []).append(name)
    for role, matches in candidates.items():
        if len(matches) > 1:
            raise DataError(
                f"{source_name}: {' and '.join(map(repr, matches))} may both be {role}; say which: "
                f"columns={{{role!r}: {matches[0]!r}}}, --column {role}={matches[0]}"
            )
    return {role: matches[0] for role, matches in candidates.items() if matches}


def holds_ids(name: str) -> bool:
    """Whether a column holds ids of users or items, by its name."""
    return _role_of(name) in ("user_id", "item_id")


def _role_of(name: str) -> str | None:
    """Role of a column by the spelling of its name."""
    return _ROLE_BY_SPELLING.get(re.sub(r"[_\-\s]", "", name).lower())
