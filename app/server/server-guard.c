/* server-guard.c: what is refused before its body is read.
 *
 * In this order: the Host header (421: another name that leads here is a page's trick to be of the same origin), the
 * Origin header (403: pages of others have no business here, and CORS is never granted), the route (404, 405), the token
 * (401), the content type of a POST (415: a form of another page can send text/plain, but not JSON without asking first),
 * the length of the body (400, 413). */
#include "app/server/server-private.h"

#include <string.h>

/* ---- Hosts ---- */

/* "name", "name:port", "[v6]:port". Returns the name without brackets: owned; NULL when it is none of these. */
static char *
host_without_port (const char *host)
{
  const char *end, *port;

  if (host[0] == '[')
    {
      end = strchr (host, ']');
      if (end == NULL)
        return NULL;
      port = end + 1;
      host++;
    }
  else
    {
      end = strchrnul (host, ':');
      port = end;
    }
  if (end == host)
    return NULL;
  if (*port == ':')
    {
      port++;
      if (*port == '\0' || strspn (port, "0123456789") != strlen (port) || strlen (port) > 5)
        return NULL;
    }
  else if (*port != '\0')
    return NULL;
  return g_ascii_strdown (host, end - host);
}

/* An address that stands for "all of this machine's": any literal of a private network reaches us by one of them. */
static gboolean
is_private_literal (const char *name)
{
  g_autoptr (GInetAddress) address = g_inet_address_new_from_string (name);

  return address != NULL
         && (g_inet_address_get_is_site_local (address)
             || g_inet_address_get_is_link_local (address)
             || g_inet_address_get_is_loopback (address));
}

static gboolean
is_any (const char *literal)
{
  g_autoptr (GInetAddress) address
      = literal != NULL ? g_inet_address_new_from_string (literal) : NULL;

  return address != NULL && g_inet_address_get_is_any (address);
}

gboolean
srv_guard_host_is_ours (QuireServer *self, const char *host)
{
  g_autofree char *name = host != NULL ? host_without_port (host) : NULL;

  if (name == NULL)
    return FALSE;
  if (strcmp (name, "localhost") == 0 || strcmp (name, "127.0.0.1") == 0
      || strcmp (name, "::1") == 0)
    return TRUE;
  if (self->host != NULL && g_ascii_strcasecmp (name, self->host) == 0)
    return TRUE;
  for (guint i = 0; self->allowed_hosts != NULL && self->allowed_hosts[i] != NULL; i++)
    if (g_ascii_strcasecmp (name, self->allowed_hosts[i]) == 0)
      return TRUE;
  return is_any (self->host) && is_private_literal (name);
}

static gboolean
check_host (QuireServer *self, SoupServerMessage *msg, SrvError *error)
{
  SoupMessageHeaders *headers = soup_server_message_get_request_headers (msg);
  const char *host = soup_message_headers_get_list (headers, "Host");
  GUri *uri = soup_server_message_get_uri (msg);
  g_autofree char *target = NULL;

  /* A request in absolute form names its host in the first line, too. */
  if (uri != NULL && g_uri_get_host (uri) != NULL)
    target = strchr (g_uri_get_host (uri), ':') != NULL
                 ? g_strdup_printf ("[%s]", g_uri_get_host (uri))
                 : g_strdup (g_uri_get_host (uri));
  if (srv_guard_host_is_ours (self, host) && srv_guard_host_is_ours (self, target))
    return TRUE;
  return srv_error_set (error, 421, "host_not_allowed", NULL,
                        "This server does not answer to that Host; use localhost or the address it "
                        "listens at");
}

/* A page's request carries the page's origin. Ours is the very address that it was loaded from. */
static gboolean
check_origin (SoupServerMessage *msg, SrvError *error)
{
  SoupMessageHeaders *headers = soup_server_message_get_request_headers (msg);
  const char *origin = soup_message_headers_get_list (headers, "Origin");
  const char *site = soup_message_headers_get_list (headers, "Sec-Fetch-Site");
  const char *host = soup_message_headers_get_list (headers, "Host");

  if (origin != NULL
      && (!g_str_has_prefix (origin, "http://") || g_ascii_strcasecmp (origin + 7, host) != 0))
    return srv_error_set (error, 403, "origin_not_allowed", NULL,
                          "Pages of other origins may not use this server");
  /* Without an Origin a page of another site can still follow a link here, and no more. */
  if (site != NULL && origin == NULL && strcmp (site, "cross-site") == 0
      && g_strcmp0 (soup_message_headers_get_one (headers, "Sec-Fetch-Mode"), "navigate") != 0)
    return srv_error_set (error, 403, "origin_not_allowed", NULL,
                          "Pages of other origins may not use this server");
  return TRUE;
}

/* ---- The token ---- */

/* In a time that does not depend on where they differ. */
static gboolean
tokens_equal (const char *a, const char *b)
{
  gsize n_a = strlen (a), n_b = strlen (b);
  guint difference = n_a != n_b;

  for (gsize i = 0; i < n_b; i++)
    difference |= (guchar)a[i < n_a ? i : 0] ^ (guchar)b[i];
  return difference == 0;
}

static gboolean
check_token (QuireServer *self, SoupServerMessage *msg, SrvError *error)
{
  SoupMessageHeaders *headers = soup_server_message_get_request_headers (msg);
  const char *given = soup_message_headers_get_one (headers, "Authorization");

  if (self->token == NULL)
    return TRUE;
  if (given != NULL && g_ascii_strncasecmp (given, "Bearer ", 7) == 0)
    {
      for (given += 7; *given == ' ';)
        given++;
      if (tokens_equal (given, self->token))
        return TRUE;
    }
  return srv_error_set (error, 401, "invalid_api_key", NULL,
                        "This server needs its token: Authorization: Bearer TOKEN");
}

/* ---- The body ---- */

static gboolean
check_type (SoupServerMessage *msg, SrvError *error)
{
  SoupMessageHeaders *headers = soup_server_message_get_request_headers (msg);
  g_autoptr (GHashTable) parameters = NULL;
  const char *type = soup_message_headers_get_content_type (headers, &parameters);

  if (type == NULL || g_ascii_strcasecmp (type, "application/json") != 0)
    return srv_error_set (error, 415, "unsupported_media_type", NULL,
                          "Content-Type: expected application/json");
  if (soup_message_headers_get_list (headers, "Content-Encoding") != NULL)
    return srv_error_set (error, 415, "unsupported_media_type", NULL,
                          "Content-Encoding: bodies are taken as they are");
  return TRUE;
}

static gboolean
check_length (QuireServer *self, SoupServerMessage *msg, SrvError *error)
{
  SoupMessageHeaders *headers = soup_server_message_get_request_headers (msg);
  const char *length = soup_message_headers_get_list (headers, "Content-Length");
  guint64 n = 0;

  if (length != NULL && !g_ascii_string_to_unsigned (length, 10, 0, G_MAXUINT64, &n, NULL))
    return srv_error_set (error, 400, "invalid_length", NULL,
                          "Content-Length: expected one whole number");
  if (n > self->options.body_bytes_max)
    return srv_error_set (error, 413, "body_too_large", NULL,
                          "The body has %" G_GUINT64_FORMAT " bytes, at most %" G_GSIZE_FORMAT
                          " are taken",
                          n, self->options.body_bytes_max);
  return TRUE;
}

static gboolean
check_headers (SoupServerMessage *msg, SrvError *error)
{
  SoupMessageHeadersIter iter;
  const char *name, *value;
  gsize n = strlen (g_uri_get_path (soup_server_message_get_uri (msg)));

  soup_message_headers_iter_init (&iter, soup_server_message_get_request_headers (msg));
  while (soup_message_headers_iter_next (&iter, &name, &value))
    n += strlen (name) + strlen (value) + 4;
  return n <= SRV_HEADER_BYTES_MAX
         || srv_error_set (error, 431, "headers_too_large", NULL,
                           "The head of the request has more than %u bytes", SRV_HEADER_BYTES_MAX);
}

gboolean
srv_guard_check (QuireServer *self, SoupServerMessage *msg, SrvError *error)
{
  const char *method = soup_server_message_get_method (msg);
  const char *path = g_uri_get_path (soup_server_message_get_uri (msg));
  const SrvRoute *route;
  g_autofree char *arg = NULL;
  g_autofree char *allow = NULL;

  if (!check_host (self, msg, error) || !check_origin (msg, error) || !check_headers (msg, error))
    return FALSE;
  route = srv_route_find (method, path, &arg, &allow, error);
  if (route == NULL)
    {
      if (allow != NULL)
        soup_message_headers_replace (soup_server_message_get_response_headers (msg), "Allow",
                                      allow);
      return FALSE;
    }
  if (!route->is_open && !check_token (self, msg, error))
    return FALSE;
  if (strcmp (method, "POST") == 0 && !check_type (msg, error))
    return FALSE;
  return check_length (self, msg, error);
}
