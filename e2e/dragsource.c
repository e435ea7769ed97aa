// dragsource FILE…: a small window at the screen's corner from which files can be dragged, as from a file manager.
#include <gtk/gtk.h>

static char **addresses;

static void offer(GtkWidget *widget, GdkDragContext *context, GtkSelectionData *data, guint info, guint time, gpointer user) {
	(void)widget, (void)context, (void)info, (void)time, (void)user;
	gtk_selection_data_set_uris(data, addresses);
}

int main(int count, char **arguments) {
	gtk_init(&count, &arguments);
	addresses = g_new0(char *, count);
	for (int i = 1; i < count; i++) {
		addresses[i - 1] = g_filename_to_uri(arguments[i], NULL, NULL);
	}
	GtkWidget *window = gtk_window_new(GTK_WINDOW_POPUP);
	gtk_window_move(GTK_WINDOW(window), 0, 0);
	gtk_window_set_default_size(GTK_WINDOW(window), 80, 60);
	GtkWidget *button = gtk_button_new_with_label("drag");
	gtk_container_add(GTK_CONTAINER(window), button);
	GtkTargetEntry kinds[] = {{"text/uri-list", 0, 0}};
	gtk_drag_source_set(button, GDK_BUTTON1_MASK, kinds, 1, GDK_ACTION_COPY);
	g_signal_connect(button, "drag-data-get", G_CALLBACK(offer), NULL);
	gtk_widget_show_all(window);
	gtk_main();
	return 0;
}
