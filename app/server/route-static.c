/* route-static.c: the page to chat in, the API's description, Swagger UI: files that are built in. */
#include "app/server/server-private.h"

#include <string.h>

#define PREFIX "/io/github/quire_chat/Quire/server"

static const struct
{
  const char *path, *resource, *type;
} files[] = {
  { "/", PREFIX "/web/index.html", "text/html; charset=utf-8" },
  { "/web/quire.css", PREFIX "/web/quire.css", "text/css; charset=utf-8" },
  { "/web/quire.js", PREFIX "/web/quire.js", "text/javascript; charset=utf-8" },
  { "/web/markdown.js", PREFIX "/web/markdown.js", "text/javascript; charset=utf-8" },
  { "/web/cache.js", PREFIX "/web/cache.js", "text/javascript; charset=utf-8" },
  { "/web/quire.svg", PREFIX "/web/quire.svg", "image/svg+xml" },
  { "/favicon.ico", PREFIX "/web/quire.svg", "image/svg+xml" },
  { "/openapi.json", PREFIX "/openapi.json", "application/json" },
  { "/docs", PREFIX "/docs/index.html", "text/html; charset=utf-8" },
  { "/docs/docs.js", PREFIX "/docs/docs.js", "text/javascript; charset=utf-8" },
  { "/docs/docs.css", PREFIX "/docs/docs.css", "text/css; charset=utf-8" },
  { "/docs/swagger-ui-bundle.js", PREFIX "/docs/swagger-ui-bundle.js",
    "text/javascript; charset=utf-8" },
  { "/docs/swagger-ui.css", PREFIX "/docs/swagger-ui.css", "text/css; charset=utf-8" },
};

void
srv_route_static (QuireServer *self, SoupServerMessage *msg, const char *arg)
{
  const char *path = g_uri_get_path (soup_server_message_get_uri (msg));
  SrvError error = { 0 };

  for (guint i = 0; i < G_N_ELEMENTS (files); i++)
    if (strcmp (path, files[i].path) == 0)
      {
        g_autoptr (GBytes) bytes
            = g_resources_lookup_data (files[i].resource, G_RESOURCE_LOOKUP_FLAGS_NONE, NULL);
        gsize n;
        const char *data = g_bytes_get_data (bytes, &n);

        /* Another version of the program may listen here next time. */
        soup_message_headers_replace (soup_server_message_get_response_headers (msg),
                                      "Cache-Control", "no-cache");
        srv_answer (msg, 200, files[i].type, g_string_new_len (data, (gssize)n));
        return;
      }
  srv_error_set (&error, 404, "unknown_url", NULL, "There is no such file");
  srv_refuse (msg, &error);
}
