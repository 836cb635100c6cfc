# What gcomp.h is made of, for check_style.sh: awk -f tests/tools/chapters.awk gcomp.h gcomp.h (the header is read twice). Prints
#   size CHAPTER LINES             the length of each chapter
#   later NAME CHAPTER HOME        CHAPTER uses a private name which HOME, a later chapter, defines
#   foreign NAME CHAPTER HOME      CHAPTER uses a private name of HOME, the chapter of a method that is not its own
#   maker NAME CHAPTER             a macro that makes functions: ctags cannot name these, nor can a debugger step into them
#   flag NAME CHAPTER              only the row of CHAPTER sets this flag, and a chapter from >>dispatch on asks for it
#   row NAME CHAPTER               CHAPTER, which does not define the row, uses it by its name; or, behind the methods', names its method in a text
#   comments COMMENTED LINES CODE  of the implementation: lines with a comment, lines that are not blank, lines with code
# A chapter begins at a banner with a >>tag, at a comment that begins with >>tag (but not >>kernel), or at one with dashes and a
# title. Names that macros paste together are not seen.

function slug(text) {
    sub(/[:.,(].*/, "", text)
    gsub(/[^A-Za-z0-9_ -]/, "", text)
    sub(/ +$/, "", text)
    sub(/^ +/, "", text)
    sub(/ - .*/, "", text)
    gsub(/ /, "_", text)
    return text
}
function begin_chapter(text) { # names that stand twice get a number
    text = slug(text)
    chapter = text
    if (FNR == NR) {
        order[++chapters] = text
        from[chapters] = FNR
    } else chapters2++
    at = FNR == NR ? chapters : chapters2
}
# the line without comments and strings; commented: it has some of a comment
function strip(line,   i, j, text) {
    text = ""
    commented = inside
    while (line != "") {
        if (inside) {
            i = index(line, "*/")
            if (!i) return text
            line = substr(line, i + 2)
            inside = 0
        } else {
            i = index(line, "/*")
            j = index(line, "//")
            if (j && (!i || j < i)) { commented = 1; return text substr(line, 1, j - 1) }
            if (!i) return text line
            text = text substr(line, 1, i - 1)
            line = substr(line, i + 2)
            inside = commented = 1
        }
    }
    return text
}
function define(name) {
    if (!(name in home)) home[name] = at
}
function each_name(text, what,   name, rest) { # what: 1 defines the names, 2 uses them
    while (match(text, /(gcomp|GCOMP)__[A-Za-z0-9_]+/)) {
        name = substr(text, RSTART, RLENGTH)
        rest = substr(text, RSTART + RLENGTH)
        if (what == 1) define(name)
        else use(name)
        text = rest
    }
}
function is_foreign(from,   of) { # of a method, and this chapter is neither it nor "something of it", "decoding it"
    of = order[from]
    return from != at && sub(/^method_/, "", of) && order[at] !~ ("_" of "$")
}
function use(name) {
    if (name in home) {
        if (home[name] > at && !((at, name) in seen)) print "later", name, order[at], order[home[name]]
        else if (is_foreign(home[name]) && !((at, name) in seen)) print "foreign", name, order[at], order[home[name]]
        seen[at, name] = 1
    }
}

# Flags of rows: from the enum under the comment that says so. A row sets a flag, or a function of the row does for some parameters.
function each_flag(text, sets,   name) {
    while (match(text, /GCOMP__[A-Z0-9_]+/)) {
        name = substr(text, RSTART, RLENGTH)
        text = substr(text, RSTART + RLENGTH)
        if (!(name in flag)) continue
        if (sets && !((name, at) in owns)) { owns[name, at] = 1; owners[name]++; owner[name] = order[at] }
        if (!sets && behind) asked[name] = 1
    }
}

# Texts: names of methods that are words of other meanings too do not count.
function each_text(text,   words, n, i) {
    while (match(text, /"([^"\\]|\\.)*"/)) {
        n = split(substr(text, RSTART, RLENGTH), words, /[^a-z0-9]+/)
        text = substr(text, RSTART + RLENGTH)
        for (i = 1; i <= n; i++)
            if (words[i] in methods && words[i] !~ /^(none|fp16|bf16|int|sign|natural|vote|sketch|fetch)$/) print "row", "gcomp__row_" words[i], order[at]
    }
}

FNR == 1 { inside = 0; implementation = 0; at = 0; banner = 0; open = 0; body = 0; depth = 0 }
/^#ifdef GCOMP_IMPLEMENTATION/ || /^   >>platform/ { implementation = 1 }
{
    if ($0 ~ /^\/\* -{60}/ || $0 ~ /^\/\* ------------------------------------------------------------/) banner = 1
    else if (banner && /^   >>[a-z]/) { begin_chapter(substr($1, 3)); banner = 0 }
    else {
        banner = 0
        if (/^\/\* >>[a-z]/ && !/^\/\* >>kernel/) begin_chapter(substr($0, 6))
        else if (implementation && /^\/\* ---------------- [A-Za-z]/) begin_chapter(substr($0, 21))
    }
    if (!at) next
    text = strip($0)
    if (behind && FNR != NR) each_text(text)
    gsub(/"([^"\\]|\\.)*"/, "", text)
    if (FNR != NR) {
        each_name(text, 2)
        if (match(text, /gcomp__method gcomp__row_/)) inrow = 1
        else if (match(text, /gcomp__row_[a-z0-9]+/)) print "row", substr(text, RSTART, RLENGTH), order[at]
        if (order[at] == "dispatch") behind = 1
        each_flag(text, inrow || text ~ /flags [|^]?= /)
        if (text ~ /;/) inrow = 0
        next
    }
    if (match(text, /gcomp__row_[a-z0-9]+ =/)) methods[substr(text, RSTART + 11, RLENGTH - 13)] = 1
    last = FNR
    if (implementation && $0 !~ /^[ ]*$/) {
        lines++
        with_comment += commented
        code += text !~ /^[ ]*$/
    }
    # definitions: macros; what begins in the first column; the names of an enum
    if (macro != "" && text ~ /(^| )(static|GCOMP__INLINE|GCOMP__NOINLINE|GCOMP__HEAVY) [^;=]*\(/ && !(macro in makes)) {
        makes[macro] = 1
        print "maker", macro, order[at]
    }
    if (text !~ /\\$/) macro = ""
    if (text ~ /^[ ]*#[ ]*define /) {
        sub(/^[ ]*#[ ]*define /, "", text)
        match(text, /^[A-Za-z0-9_]+/)
        define(substr(text, 1, RLENGTH))
        macro = text ~ /\\$/ ? substr(text, 1, RLENGTH) : ""
        next
    }
    if (text ~ /^#/) next
    if (text ~ /^enum/ || text ~ /^typedef enum/) inenum = 1
    if ($0 ~ /The flags of a row/) inflags = 1
    if (inenum) {
        each_name(text, 1)
        if (inflags && match(text, /GCOMP__[A-Z_]+ =/)) flag[substr(text, RSTART, RLENGTH - 2)] = 1
        if (text ~ /}/) inflags = 0
        if (text ~ /}/) inenum = 0
        next
    }
    if (text ~ /^[A-Za-z]/) {
        if (text ~ /;[ ]*$/ && text !~ /^typedef/ && text !~ /=/ && text ~ /\(/) next # only a declaration
        if (text ~ /^typedef/ || text ~ /^struct/) { # the tag, or the name at the end
            if (match(text, /(gcomp|GCOMP)__[A-Za-z0-9_]+[ ]*(\{|;|$)/)) { name = substr(text, RSTART, RLENGTH); gsub(/[ {;]/, "", name); define(name) }
            if (match(text, /\(\*?(gcomp|GCOMP)__[A-Za-z0-9_]+\)?/)) { name = substr(text, RSTART, RLENGTH); gsub(/[(*)]/, "", name); define(name) }
        } else if (match(text, /(gcomp|GCOMP)__[A-Za-z0-9_]+[ ]*(\(|\[|=)/)) {
            while (match(text, /(gcomp|GCOMP)__[A-Za-z0-9_]+[ ]*(\(|\[|=)/)) {
                name = substr(text, RSTART, RLENGTH - 1)
                sub(/ $/, "", name)
                text = substr(text, RSTART + RLENGTH)
                if (name !~ /^GCOMP__/ ) { define(name); break }
            }
        }
    } else if (text ~ /^}[ ]*(gcomp|GCOMP)__/) each_name(text, 1)
}
END {
    for (name in flag) if (asked[name] && owners[name] < 2) print "flag", name, owner[name]
    for (i = 1; i <= chapters; i++) print "size", order[i], (i < chapters ? from[i + 1] : last + 1) - from[i]
    print "comments", with_comment, lines, code
}
