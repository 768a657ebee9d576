/* quire-math.c: see quire-math.h.
 *
 * One pass over the source: atoms are appended to the markup, groups are read by recursion into strings of their own, so the
 * markup nests whatever comes. known: falls to FALSE once and for all at the first thing that is not. */
#include "app/quire-math.h"

#include <string.h>

#define DEPTH_MAX 24
#define INLINE_BYTES_MAX 400

typedef struct
{
  const char *at, *end;
  gboolean known;
  guint depth;
} Reader;

typedef struct
{
  const char *name, *text;
} Symbol;

/* Commands that are a character. */
static const Symbol symbols[] = {
  { "alpha", "α" },    { "beta", "β" },       { "gamma", "γ" },       { "delta", "δ" },
  { "epsilon", "ϵ" },  { "varepsilon", "ε" }, { "zeta", "ζ" },        { "eta", "η" },
  { "theta", "θ" },    { "vartheta", "ϑ" },   { "iota", "ι" },        { "kappa", "κ" },
  { "lambda", "λ" },   { "mu", "μ" },         { "nu", "ν" },          { "xi", "ξ" },
  { "pi", "π" },       { "varpi", "ϖ" },      { "rho", "ρ" },         { "sigma", "σ" },
  { "varsigma", "ς" }, { "tau", "τ" },        { "upsilon", "υ" },     { "phi", "ϕ" },
  { "varphi", "φ" },   { "chi", "χ" },        { "psi", "ψ" },         { "omega", "ω" },
  { "Gamma", "Γ" },    { "Delta", "Δ" },      { "Theta", "Θ" },       { "Lambda", "Λ" },
  { "Xi", "Ξ" },       { "Pi", "Π" },         { "Sigma", "Σ" },       { "Upsilon", "Υ" },
  { "Phi", "Φ" },      { "Psi", "Ψ" },        { "Omega", "Ω" },       { "sum", "∑" },
  { "prod", "∏" },     { "coprod", "∐" },     { "int", "∫" },         { "iint", "∬" },
  { "iiint", "∭" },    { "oint", "∮" },       { "bigcup", "⋃" },      { "bigcap", "⋂" },
  { "bigoplus", "⨁" }, { "infty", "∞" },      { "partial", "∂" },     { "nabla", "∇" },
  { "hbar", "ℏ" },     { "ell", "ℓ" },        { "Re", "ℜ" },          { "Im", "ℑ" },
  { "aleph", "ℵ" },    { "emptyset", "∅" },   { "varnothing", "∅" },  { "forall", "∀" },
  { "exists", "∃" },   { "nexists", "∄" },    { "neg", "¬" },         { "lnot", "¬" },
  { "angle", "∠" },    { "degree", "°" },     { "prime", "′" },       { "dagger", "†" },
  { "ddagger", "‡" },  { "ldots", "…" },      { "dots", "…" },        { "cdots", "⋯" },
  { "vdots", "⋮" },    { "ddots", "⋱" },      { "therefore", "∴" },   { "because", "∵" },
  { "Box", "□" },      { "square", "□" },     { "blacksquare", "■" }, { "triangle", "△" },
  { "bot", "⊥" },      { "top", "⊤" },        { "cdot", "·" },        { "bullet", "•" },
  { "circ", "∘" },     { "ast", "∗" },        { "star", "⋆" },        { "langle", "⟨" },
  { "rangle", "⟩" },   { "lfloor", "⌊" },     { "rfloor", "⌋" },      { "lceil", "⌈" },
  { "rceil", "⌉" },    { "lbrace", "{" },     { "rbrace", "}" },      { "lbrack", "[" },
  { "rbrack", "]" },   { "vert", "|" },       { "Vert", "‖" },        { "|", "‖" },
  { "{", "{" },        { "}", "}" },          { "%", "%" },           { "#", "#" },
  { "&", "&amp;" },    { "$", "$" },          { "_", "_" },           { "backslash", "\\" },
  { "imath", "ı" },    { "jmath", "ȷ" },
};

/* Commands that are a relation or an operation, with room around them. */
static const Symbol spaced[] = {
  { "times", "×" },
  { "div", "÷" },
  { "pm", "±" },
  { "mp", "∓" },
  { "oplus", "⊕" },
  { "ominus", "⊖" },
  { "otimes", "⊗" },
  { "odot", "⊙" },
  { "cup", "∪" },
  { "cap", "∩" },
  { "setminus", "∖" },
  { "land", "∧" },
  { "wedge", "∧" },
  { "lor", "∨" },
  { "vee", "∨" },
  { "leq", "≤" },
  { "le", "≤" },
  { "geq", "≥" },
  { "ge", "≥" },
  { "neq", "≠" },
  { "ne", "≠" },
  { "lt", "&lt;" },
  { "gt", "&gt;" },
  { "ll", "≪" },
  { "gg", "≫" },
  { "approx", "≈" },
  { "sim", "∼" },
  { "simeq", "≃" },
  { "cong", "≅" },
  { "equiv", "≡" },
  { "propto", "∝" },
  { "in", "∈" },
  { "notin", "∉" },
  { "ni", "∋" },
  { "subset", "⊂" },
  { "subseteq", "⊆" },
  { "supset", "⊃" },
  { "supseteq", "⊇" },
  { "mid", "∣" },
  { "parallel", "∥" },
  { "perp", "⊥" },
  { "to", "→" },
  { "rightarrow", "→" },
  { "gets", "←" },
  { "leftarrow", "←" },
  { "leftrightarrow", "↔" },
  { "Rightarrow", "⇒" },
  { "implies", "⟹" },
  { "Leftarrow", "⇐" },
  { "Leftrightarrow", "⇔" },
  { "iff", "⟺" },
  { "mapsto", "↦" },
  { "longrightarrow", "⟶" },
  { "hookrightarrow", "↪" },
  { "uparrow", "↑" },
  { "downarrow", "↓" },
  { "vdash", "⊢" },
  { "models", "⊨" },
  { "coloneqq", "≔" },
  { "triangleq", "≜" },
  { "asymp", "≍" },
};

/* Names in upright letters. */
static const char *const functions[]
    = { "sin",    "cos",  "tan",  "cot", "sec", "csc", "arcsin", "arccos", "arctan",
        "sinh",   "cosh", "tanh", "log", "ln",  "lg",  "exp",    "lim",    "limsup",
        "liminf", "max",  "min",  "sup", "inf", "arg", "argmax", "argmin", "det",
        "dim",    "ker",  "gcd",  "deg", "Pr",  "mod", "bmod" };

/* Over one character. */
static const Symbol accents[] = {
  { "hat", "\u0302" },  { "widehat", "\u0302" },  { "tilde", "\u0303" }, { "widetilde", "\u0303" },
  { "bar", "\u0304" },  { "overline", "\u0305" }, { "vec", "\u20d7" },   { "dot", "\u0307" },
  { "ddot", "\u0308" }, { "check", "\u030c" },    { "breve", "\u0306" }, { "underline", "\u0332" },
};

static const Symbol spaces[] = {
  { ",", "\u2009" }, { ":", "\u2005" },    { ";", "\u2004" },           { " ", " " },
  { "!", "" },       { "quad", "\u2003" }, { "qquad", "\u2003\u2003" }, { "thinspace", "\u2009" },
};

/* Commands about size and place, which a line of text has not. */
static const char *const ignored[]
    = { "displaystyle", "textstyle", "scriptstyle", "limits", "nolimits", "big",  "Big",
        "bigg",         "Bigg",      "bigl",        "bigr",   "Bigl",     "Bigr", "biggl",
        "biggr",        "nonumber",  "notag",       "hfill",  "mathstrut" };

static const Symbol blackboard[]
    = { { "R", "ℝ" }, { "N", "ℕ" }, { "Z", "ℤ" }, { "Q", "ℚ" }, { "C", "ℂ" },
        { "P", "ℙ" }, { "E", "𝔼" }, { "F", "𝔽" }, { "H", "ℍ" }, { "1", "𝟙" } };

static const char *
find_symbol (const Symbol *table, gsize n, const char *name)
{
  for (gsize i = 0; i < n; i++)
    if (strcmp (table[i].name, name) == 0)
      return table[i].text;
  return NULL;
}

static gboolean
is_among (const char *const *names, gsize n, const char *name)
{
  for (gsize i = 0; i < n; i++)
    if (strcmp (names[i], name) == 0)
      return TRUE;
  return FALSE;
}

static void read_until (Reader *r, GString *out, const char *stop);

static void
skip_space (Reader *r)
{
  while (r->at < r->end && g_ascii_isspace (*r->at))
    r->at++;
}

static void
append_escaped (GString *out, const char *text, gsize n)
{
  g_autofree char *escaped = g_markup_escape_text (text, (gssize)n);

  g_string_append (out, escaped);
}

/* The raw text of {…}. Returns: owned; NULL when there is none. */
static char *
read_raw_group (Reader *r)
{
  const char *begin, *close;

  skip_space (r);
  if (r->at >= r->end || *r->at != '{')
    {
      r->known = FALSE;
      return NULL;
    }
  begin = r->at + 1;
  close = memchr (begin, '}', (gsize)(r->end - begin));
  if (close == NULL)
    {
      r->known = FALSE;
      return NULL;
    }
  r->at = close + 1;
  return g_strndup (begin, (gsize)(close - begin));
}

static void read_atom (Reader *r, GString *out);

/* {…} or one atom. Returns: owned markup. */
static char *
read_argument (Reader *r)
{
  GString *out = g_string_new (NULL);

  skip_space (r);
  if (r->at >= r->end || r->depth >= DEPTH_MAX)
    r->known = FALSE;
  else if (*r->at == '{')
    {
      r->at++;
      read_until (r, out, "}");
    }
  else
    {
      r->depth++;
      read_atom (r, out);
      r->depth--;
    }
  return g_string_free (out, FALSE);
}

/* Characters that are seen in @markup. */
static glong
count_shown (const char *markup)
{
  glong n = 0;
  gboolean in_tag = FALSE;

  for (const char *p = markup; *p != '\0'; p = g_utf8_next_char (p))
    {
      if (*p == '<')
        in_tag = TRUE;
      else if (*p == '>')
        in_tag = FALSE;
      else if (!in_tag && !g_unichar_ismark (g_utf8_get_char (p)))
        n++;
    }
  return n;
}

static void
append_bracketed (GString *out, const char *markup)
{
  if (count_shown (markup) > 1)
    g_string_append_printf (out, "(%s)", markup);
  else
    g_string_append (out, markup);
}

static void
read_fraction (Reader *r, GString *out)
{
  g_autofree char *above = read_argument (r);
  g_autofree char *below = read_argument (r);

  if (count_shown (above) <= 2 && count_shown (below) <= 2)
    {
      g_string_append_printf (out, "<sup>%s</sup>⁄<sub>%s</sub>", above, below);
      return;
    }
  append_bracketed (out, above);
  g_string_append (out, " / ");
  append_bracketed (out, below);
}

static void
read_root (Reader *r, GString *out)
{
  g_autofree char *inside = NULL;

  skip_space (r);
  if (r->at < r->end && *r->at == '[')
    {
      GString *index = g_string_new (NULL);

      r->at++;
      read_until (r, index, "]");
      g_string_append_printf (out, "<sup>%s</sup>", index->str);
      g_string_free (index, TRUE);
    }
  inside = read_argument (r);
  g_string_append (out, "√");
  append_bracketed (out, inside);
}

/* The mark goes behind each character that is seen: \overline{AB} has two. */
static void
read_accent (Reader *r, GString *out, const char *mark)
{
  g_autofree char *inside = read_argument (r);
  gboolean in_tag = FALSE, in_entity = FALSE;

  for (const char *p = inside; *p != '\0'; p = g_utf8_next_char (p))
    {
      g_string_append_len (out, p, g_utf8_next_char (p) - p);
      if (*p == '<')
        in_tag = TRUE;
      else if (*p == '&')
        in_entity = TRUE;
      else if (!in_tag && !in_entity)
        g_string_append (out, mark);
      else if (*p == '>')
        in_tag = FALSE;
      else if (*p == ';')
        {
          in_entity = FALSE;
          g_string_append (out, mark);
        }
    }
}

/* A delimiter behind \left or \right. */
static void
read_delimiter (Reader *r, GString *out)
{
  skip_space (r);
  if (r->at >= r->end)
    r->known = FALSE;
  else if (*r->at == '.')
    r->at++;
  else if (*r->at == '\\')
    read_atom (r, out);
  else
    {
      const char *next = g_utf8_next_char (r->at);

      append_escaped (out, r->at, (gsize)(next - r->at));
      r->at = next;
    }
}

/* ---- Rows: matrices, cases, aligned equations ---- */

/* What stands left and right of row @i of @n. */
static const char *
bracket_piece (const char *const pieces[4], guint i, guint n)
{
  return n == 1 ? pieces[0] : i == 0 ? pieces[1] : i + 1 == n ? pieces[3] : pieces[2];
}

static void
append_rows (GString *out, GPtrArray *rows, const char *environment)
{
  static const char *const left_round[]
      = { "(", "⎛", "⎜", "⎝" },
      *const right_round[] = { ")", "⎞", "⎟", "⎠" }, *const left_square[] = { "[", "⎡", "⎢", "⎣" },
             *const right_square[] = { "]", "⎤", "⎥", "⎦" }, *const line[] = { "|", "│", "│", "│" },
             *const left_cases[] = { "{", "⎧", "⎨", "⎩" }, *const none[] = { "", "", "", "" };
  const char *const *left = none, *const *right = none;

  if (strcmp (environment, "pmatrix") == 0)
    {
      left = left_round;
      right = right_round;
    }
  else if (strcmp (environment, "bmatrix") == 0)
    {
      left = left_square;
      right = right_square;
    }
  else if (strcmp (environment, "vmatrix") == 0)
    left = right = line;
  else if (strcmp (environment, "cases") == 0)
    left = left_cases;
  for (guint i = 0; i < rows->len; i++)
    {
      if (i > 0 || out->len > 0)
        g_string_append_c (out, rows->len > 1 ? '\n' : ' ');
      g_string_append_printf (out, "%s %s %s", bracket_piece (left, i, rows->len),
                              (const char *)g_ptr_array_index (rows, i),
                              bracket_piece (right, i, rows->len));
    }
}

static void
read_environment (Reader *r, GString *out)
{
  static const char *const known[]
      = { "matrix", "pmatrix", "bmatrix", "vmatrix", "cases",    "aligned",   "align",
          "align*", "gather",  "gather*", "split",   "equation", "equation*", "array" };
  g_autofree char *name = read_raw_group (r);
  g_autoptr (GPtrArray) rows = g_ptr_array_new_with_free_func (g_free);

  if (name == NULL || !is_among (known, G_N_ELEMENTS (known), name))
    {
      r->known = FALSE;
      return;
    }
  if (strcmp (name, "array") == 0)
    g_free (read_raw_group (r));
  while (r->known)
    {
      GString *row = g_string_new (NULL);

      read_until (r, row, "\\");
      g_ptr_array_add (rows, g_string_free (row, FALSE));
      /* read_until() stops behind  \\  or  \end. */
      if (r->at >= r->end)
        r->known = FALSE;
      else if (r->at[-1] != '\\')
        break;
    }
  if (r->known)
    {
      g_autofree char *closed = read_raw_group (r);

      if (g_strcmp0 (closed, name) != 0)
        r->known = FALSE;
    }
  /* A last row that is empty ends with  \\. */
  if (rows->len > 1
      && strspn (g_ptr_array_index (rows, rows->len - 1), " \n")
             == strlen (g_ptr_array_index (rows, rows->len - 1)))
    g_ptr_array_set_size (rows, (int)rows->len - 1);
  append_rows (out, rows, name);
}

/* ---- Commands and atoms ---- */

/* Behind the backslash: letters, or one other character. Returns: owned. */
static char *
read_name (Reader *r)
{
  const char *begin = r->at;

  if (r->at >= r->end)
    return g_strdup ("");
  if (g_ascii_isalpha (*r->at))
    while (r->at < r->end && g_ascii_isalpha (*r->at))
      r->at++;
  else
    r->at = g_utf8_next_char (r->at);
  return g_strndup (begin, (gsize)(r->at - begin));
}

static void
read_text (Reader *r, GString *out, const char *before, const char *after)
{
  g_autofree char *raw = read_raw_group (r);

  if (raw == NULL)
    return;
  if (strpbrk (raw, "\\{$") != NULL)
    r->known = FALSE;
  g_string_append (out, before);
  append_escaped (out, raw, strlen (raw));
  g_string_append (out, after);
}

static void
read_blackboard (Reader *r, GString *out)
{
  g_autofree char *raw = read_raw_group (r);
  const char *text = raw != NULL ? find_symbol (blackboard, G_N_ELEMENTS (blackboard), raw) : NULL;

  if (text != NULL)
    g_string_append (out, text);
  else
    r->known = FALSE;
}

static void
read_styled (Reader *r, GString *out, const char *tag)
{
  g_autofree char *inside = read_argument (r);

  g_string_append_printf (out, "<%s>%s</%s>", tag, inside, tag);
}

static void
read_command (Reader *r, GString *out)
{
  g_autofree char *name = read_name (r);
  const char *text;

  if ((text = find_symbol (symbols, G_N_ELEMENTS (symbols), name)) != NULL
      || (text = find_symbol (spaces, G_N_ELEMENTS (spaces), name)) != NULL)
    g_string_append (out, text);
  else if ((text = find_symbol (spaced, G_N_ELEMENTS (spaced), name)) != NULL)
    g_string_append_printf (out, " %s ", text);
  else if ((text = find_symbol (accents, G_N_ELEMENTS (accents), name)) != NULL)
    read_accent (r, out, text);
  else if (is_among (functions, G_N_ELEMENTS (functions), name))
    g_string_append_printf (out, "%s\u2009", name);
  else if (is_among (ignored, G_N_ELEMENTS (ignored), name))
    return;
  else if (strcmp (name, "frac") == 0 || strcmp (name, "dfrac") == 0 || strcmp (name, "tfrac") == 0)
    read_fraction (r, out);
  else if (strcmp (name, "binom") == 0)
    {
      g_autofree char *n = read_argument (r);
      g_autofree char *k = read_argument (r);

      g_string_append_printf (out, "C(%s, %s)", n, k);
    }
  else if (strcmp (name, "sqrt") == 0)
    read_root (r, out);
  else if (strcmp (name, "left") == 0 || strcmp (name, "right") == 0
           || strcmp (name, "middle") == 0)
    read_delimiter (r, out);
  else if (strcmp (name, "text") == 0 || strcmp (name, "mathrm") == 0
           || strcmp (name, "operatorname") == 0 || strcmp (name, "textrm") == 0
           || strcmp (name, "mbox") == 0)
    read_text (r, out, "", "");
  else if (strcmp (name, "textbf") == 0)
    read_text (r, out, "<b>", "</b>");
  else if (strcmp (name, "textit") == 0)
    read_text (r, out, "<i>", "</i>");
  else if (strcmp (name, "mathbf") == 0 || strcmp (name, "boldsymbol") == 0
           || strcmp (name, "bm") == 0)
    read_styled (r, out, "b");
  else if (strcmp (name, "mathcal") == 0 || strcmp (name, "mathit") == 0
           || strcmp (name, "mathsf") == 0 || strcmp (name, "mathscr") == 0)
    read_styled (r, out, "i");
  else if (strcmp (name, "mathbb") == 0)
    read_blackboard (r, out);
  else if (strcmp (name, "boxed") == 0)
    {
      g_autofree char *inside = read_argument (r);

      g_string_append_printf (out, "[ %s ]", inside);
    }
  else if (strcmp (name, "begin") == 0)
    read_environment (r, out);
  else if (strcmp (name, "pmod") == 0)
    {
      g_autofree char *inside = read_argument (r);

      g_string_append_printf (out, " (mod %s)", inside);
    }
  else if (strcmp (name, "\\") == 0)
    g_string_append_c (out, '\n');
  else
    r->known = FALSE;
}

/* Runs of spaces, which operators side by side leave, become one; none at the ends. */
static char *
tidy (const char *markup)
{
  GString *out = g_string_new (NULL);

  for (const char *p = markup; *p != '\0'; p++)
    if (*p != ' '
        || (out->len > 0 && out->str[out->len - 1] != ' ' && out->str[out->len - 1] != '\n'))
      g_string_append_c (out, *p);
  while (out->len > 0 && g_ascii_isspace (out->str[out->len - 1]))
    g_string_truncate (out, out->len - 1);
  return g_string_free (out, FALSE);
}

static void
read_script (Reader *r, GString *out, const char *tag)
{
  g_autofree char *inside = read_argument (r);
  g_autofree char *tight = tidy (inside);

  g_string_append_printf (out, "<%s>%s</%s>", tag, tight, tag);
}

static gboolean
is_operand_before (const GString *out)
{
  return out->len > 0 && strchr (" ([{|\n", out->str[out->len - 1]) == NULL;
}

/* One thing, without what stands as its index or exponent. */
static void
read_atom (Reader *r, GString *out)
{
  const char *next = g_utf8_next_char (r->at);
  char c = *r->at;

  switch (c)
    {
    case '\\':
      r->at++;
      read_command (r, out);
      return;
    case '{':
      r->at++;
      read_until (r, out, "}");
      return;
    case '^':
      r->at++;
      read_script (r, out, "sup");
      return;
    case '_':
      r->at++;
      read_script (r, out, "sub");
      return;
    case '}':
    case '$':
    case '#':
      r->known = FALSE;
      r->at = next;
      return;
    case '&':
      g_string_append (out, "\u2003");
      break;
    case '~':
      g_string_append (out, "\u00a0");
      break;
    case '-':
      /* A sign where nothing stands before it, else an operation. */
      g_string_append (out, is_operand_before (out) ? " − " : "−");
      break;
    case '=':
    case '+':
      g_string_append_printf (out, " %c ", c);
      break;
    case '<':
      g_string_append (out, " &lt; ");
      break;
    case '>':
      g_string_append (out, " &gt; ");
      break;
    case '\'':
      g_string_append (out, "′");
      break;
    case '*':
      g_string_append (out, "∗");
      break;
    default:
      if (g_ascii_isspace (c))
        break;
      if (g_ascii_iscntrl (c))
        r->known = FALSE;
      else if (g_ascii_isalpha (c))
        g_string_append_printf (out, "<i>%c</i>", c);
      else
        append_escaped (out, r->at, (gsize)(next - r->at));
      if (c == ',')
        g_string_append (out, "\u2009");
    }
  r->at = next;
}

/* Up to @stop, which is taken: "}", "]", or "\\" for the end of a row of an environment, which is  \\  or  \end. NULL: to the end. */
static void
read_until (Reader *r, GString *out, const char *stop)
{
  gboolean row = g_strcmp0 (stop, "\\") == 0;

  if (++r->depth > DEPTH_MAX)
    r->known = FALSE;
  while (r->known)
    {
      if (r->at >= r->end)
        {
          r->known = stop == NULL;
          break;
        }
      if (row && r->end - r->at >= 2 && memcmp (r->at, "\\\\", 2) == 0)
        {
          r->at += 2;
          break;
        }
      if (row && r->end - r->at >= 4 && memcmp (r->at, "\\end", 4) == 0)
        {
          r->at += 4;
          break;
        }
      if (stop != NULL && !row && *r->at == *stop)
        {
          r->at++;
          break;
        }
      read_atom (r, out);
    }
  r->depth--;
}

char *
quire_math_to_markup (const char *tex, gsize n_bytes)
{
  Reader r = { tex, tex + n_bytes, TRUE, 0 };
  GString *out = g_string_new (NULL);
  char *markup = NULL;

  if (n_bytes <= QUIRE_MATH_BYTES_MAX && g_utf8_validate_len (tex, n_bytes, NULL))
    {
      read_until (&r, out, NULL);
      if (r.known && out->len > 0)
        markup = tidy (out->str);
    }
  g_string_free (out, TRUE);
  return markup;
}

/* ---- Finding formulas in Markdown ---- */

static void
formula_free (gpointer data)
{
  QuireFormula *formula = data;

  g_free (formula->tex);
  g_free (formula);
}

/* Where @close is, before an empty line; NULL when it is not. @none: up to there none is, as an earlier call found: so a text of
 * nothing but openings is read once, not once for each. */
static const char *
find_close (const char *at, const char *close, const char **none)
{
  const char *p;

  if (at < *none)
    return NULL;
  for (p = at; *p != '\0' && p - at <= QUIRE_MATH_BYTES_MAX; p++)
    {
      if (p[0] == '\n' && p[1 + strspn (p + 1, " \t")] == '\n')
        break;
      if (strncmp (p, close, strlen (close)) == 0)
        return p;
      if (*p == '\\' && p[1] != '\0')
        p++;
    }
  *none = p;
  return NULL;
}

/* $…$ in one line: no space inside at its ends, no digit behind it, so that prices stay prices, and no address around it. @at:
 * behind the first dollar of @text. */
static const char *
find_dollar (const char *text, const char *at)
{
  char before = at - 1 > text ? at[-2] : ' ';

  if (g_ascii_isalnum (before) || strchr ("=/&$", before) != NULL)
    return NULL;
  if (*at == '\0' || g_ascii_isspace (*at) || *at == '$')
    return NULL;
  for (const char *p = at; *p != '\0' && *p != '\n' && p - at <= INLINE_BYTES_MAX; p++)
    {
      if (*p == '`')
        return NULL;
      if (*p == '\\' && p[1] != '\0' && p[1] != '\n')
        p++;
      else if (*p == '$')
        return g_ascii_isspace (p[-1]) || g_ascii_isdigit (p[1]) ? NULL : p;
    }
  return NULL;
}

static void
add_formula (GString *out, GPtrArray *formulas, const char *begin, const char *end,
             gboolean display)
{
  QuireFormula *formula = g_new0 (QuireFormula, 1);

  formula->tex = g_strstrip (g_strndup (begin, (gsize)(end - begin)));
  formula->display = display;
  g_string_append_unichar (out, QUIRE_MATH_OPEN);
  g_string_append_printf (out, "%u", formulas->len);
  g_string_append_unichar (out, QUIRE_MATH_CLOSE);
  g_ptr_array_add (formulas, formula);
}

/* The end of a fenced block that begins at @line; NULL when none does. */
static const char *
skip_fence (const char *line)
{
  gsize indent = strspn (line, " "), n;
  const char *p = line + indent;
  char c = *p;

  if (indent > 3 || (c != '`' && c != '~'))
    return NULL;
  n = strspn (p, c == '`' ? "`" : "~");
  if (n < 3)
    return NULL;
  while ((p = strchr (p, '\n')) != NULL)
    {
      gsize m;

      p++;
      p += strspn (p, " ");
      m = strspn (p, c == '`' ? "`" : "~");
      if (m >= n && (p[m] == '\0' || p[m + strspn (p + m, " \t")] == '\n'))
        return p + m;
    }
  return line + strlen (line);
}

/* The end of a code span at @at, which has a backtick. */
static const char *
skip_code_span (const char *at)
{
  gsize n = strspn (at, "`");
  const char *p = at + n;

  while (*p != '\0')
    {
      gsize m = strspn (p, "`");

      /* It ends within its paragraph, or is none. */
      if (p[0] == '\n' && p[1 + strspn (p + 1, " \t")] == '\n')
        break;
      if (m == n)
        return p + m;
      p += MAX (m, 1);
    }
  return at + n;
}

/* The line under a table's head: md4c wants three characters in each of its cells, models also write fewer. Returns: behind the
 * line when it was such a one, and was appended. */
static const char *
append_delimiters (GString *out, const char *line)
{
  gsize n = strspn (line, "|:- \t"), n_cell = 0;

  if (memchr (line, '|', n) == NULL || memchr (line, '-', n) == NULL
      || (line[n] != '\n' && line[n] != '\0'))
    return NULL;
  for (gsize i = 0; i < n; i++)
    {
      gboolean dash = line[i] == '-';

      g_string_append_c (out, line[i]);
      n_cell = dash || line[i] == ':' ? n_cell + 1 : 0;
      /* The run of dashes ends here. */
      if (dash && line[i + 1] != '-')
        for (; n_cell < 3; n_cell++)
          g_string_append_c (out, '-');
    }
  return line + n;
}

char *
quire_math_extract (const char *text, GPtrArray **formulas)
{
  GString *out = g_string_sized_new (strlen (text));
  const char *p = text, *none[3] = { text, text, text };

  *formulas = g_ptr_array_new_with_free_func (formula_free);
  while (*p != '\0')
    {
      const char *end = NULL;

      if (p == text || p[-1] == '\n')
        {
          end = skip_fence (p);
          if (end == NULL)
            {
              const char *after = append_delimiters (out, p);

              if (after != NULL)
                {
                  p = after;
                  continue;
                }
            }
        }
      if (end == NULL && *p == '`')
        end = skip_code_span (p);
      if (end != NULL)
        {
          g_string_append_len (out, p, end - p);
          p = end;
          continue;
        }
      if (p[0] == '\\' && (p[1] == '(' || p[1] == '['))
        {
          end = find_close (p + 2, p[1] == '(' ? "\\)" : "\\]", &none[p[1] == '(']);
          if (end != NULL && end > p + 2)
            {
              add_formula (out, *formulas, p + 2, end, p[1] == '[');
              p = end + 2;
              continue;
            }
        }
      else if (p[0] == '$' && p[1] == '$')
        {
          end = find_close (p + 2, "$$", &none[2]);
          if (end != NULL && end > p + 2)
            {
              add_formula (out, *formulas, p + 2, end, TRUE);
              p = end + 2;
              continue;
            }
          g_string_append_len (out, p, 2);
          p += 2;
          continue;
        }
      else if (p[0] == '$' && (end = find_dollar (text, p + 1)) != NULL)
        {
          add_formula (out, *formulas, p + 1, end, FALSE);
          p = end + 1;
          continue;
        }
      if (*p == '\\' && p[1] != '\0' && (guchar)p[1] < 0x80)
        {
          g_string_append_len (out, p, 2);
          p += 2;
          continue;
        }
      {
        gunichar c = g_utf8_get_char (p);

        /* The marks are ours alone. */
        g_string_append_unichar (out, c == QUIRE_MATH_OPEN || c == QUIRE_MATH_CLOSE ? 0xfffd : c);
      }
      p = g_utf8_next_char (p);
    }
  return g_string_free (out, FALSE);
}
